"""The pytrees that cross module borders and the protocols of every pluggable part.

Shape letters: `N` clients, `K` cohort, `S` samples in the pool, `M` padded samples per
client, `B` batch, `C` classes, `*P` the shape of a parameter leaf.
"""

from fedjax_pfl.core import lazy

TYPE_CHECKING = False

if TYPE_CHECKING:
    from fedjax_pfl.core.aliases import ClientState as ClientState
    from fedjax_pfl.core.aliases import Message as Message
    from fedjax_pfl.core.aliases import Params as Params
    from fedjax_pfl.core.aliases import Scalar as Scalar
    from fedjax_pfl.core.aliases import ServerState as ServerState
    from fedjax_pfl.core.aliases import Tree as Tree
    from fedjax_pfl.core.batch import Batch as Batch
    from fedjax_pfl.core.batch import Constants as Constants
    from fedjax_pfl.core.checks import InputError as InputError
    from fedjax_pfl.core.client_view import ClientView as ClientView
    from fedjax_pfl.core.federation import ClientData as ClientData
    from fedjax_pfl.core.federation import Federation as Federation
    from fedjax_pfl.core.predictor import Predictor as Predictor
    from fedjax_pfl.core.protocols import Aggregator as Aggregator
    from fedjax_pfl.core.protocols import Attack as Attack
    from fedjax_pfl.core.protocols import LocalSolver as LocalSolver
    from fedjax_pfl.core.protocols import Model as Model
    from fedjax_pfl.core.protocols import Participation as Participation
    from fedjax_pfl.core.protocols import Pluggable as Pluggable
    from fedjax_pfl.core.protocols import RankedModel as RankedModel
    from fedjax_pfl.core.protocols import RoleModel as RoleModel
    from fedjax_pfl.core.protocols import SequenceModel as SequenceModel
    from fedjax_pfl.core.protocols import ServerOptimizer as ServerOptimizer
    from fedjax_pfl.core.protocols import Solver as Solver
    from fedjax_pfl.core.protocols import Specification as Specification
    from fedjax_pfl.core.protocols import StatisticsModel as StatisticsModel
    from fedjax_pfl.core.protocols import SummedModel as SummedModel
    from fedjax_pfl.core.protocols import Transform as Transform
    from fedjax_pfl.core.protocols import Work as Work
    from fedjax_pfl.core.randomness import GENERATOR as GENERATOR
    from fedjax_pfl.core.randomness import Key as Key
    from fedjax_pfl.core.randomness import Stream as Stream
    from fedjax_pfl.core.randomness import new_key as new_key
    from fedjax_pfl.core.randomness import seed_key as seed_key
    from fedjax_pfl.core.randomness import stream_key as stream_key
    from fedjax_pfl.core.sharding import Execution as Execution
    from fedjax_pfl.core.state import Budget as Budget
    from fedjax_pfl.core.state import Downlink as Downlink
    from fedjax_pfl.core.state import Members as Members
    from fedjax_pfl.core.state import Population as Population
    from fedjax_pfl.core.state import Report as Report
    from fedjax_pfl.core.state import RoundContext as RoundContext
    from fedjax_pfl.core.state import RoundInfo as RoundInfo
    from fedjax_pfl.core.state import State as State
    from fedjax_pfl.core.state import Upload as Upload
    from fedjax_pfl.core.struct import pytree_dataclass as pytree_dataclass
    from fedjax_pfl.core.struct import static_field as static_field
    from fedjax_pfl.core.struct import traced_field as traced_field
    from fedjax_pfl.core.timetable import Timetable as Timetable
else:
    __getattr__, __dir__ = lazy.attach(__name__)
