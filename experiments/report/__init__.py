"""One page about results, with their figures and tables: `experiments.report`."""
