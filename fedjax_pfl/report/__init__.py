"""The page about results, with their figures and tables as files."""
