"""Models: networks with their losses and metrics."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.models.bert import bert_encoder as bert_encoder
    from fedjax_pfl.models.bert import bert_params as bert_params
    from fedjax_pfl.models.counting import auc as auc
    from fedjax_pfl.models.counting import macro_auc as macro_auc
    from fedjax_pfl.models.exits import EarlyExit as EarlyExit
    from fedjax_pfl.models.linear import LinearRegression as LinearRegression
    from fedjax_pfl.models.linear import LogisticRegression as LogisticRegression
    from fedjax_pfl.models.linear import Quadratic as Quadratic
    from fedjax_pfl.models.low_rank import LowRank as LowRank
    from fedjax_pfl.models.low_rank import lora as lora
    from fedjax_pfl.models.networks import CNN as CNN
    from fedjax_pfl.models.networks import CNN1 as CNN1
    from fedjax_pfl.models.networks import CNN2 as CNN2
    from fedjax_pfl.models.networks import MLP as MLP
    from fedjax_pfl.models.networks import CifarCNN as CifarCNN
    from fedjax_pfl.models.networks import FedAcsCNN as FedAcsCNN
    from fedjax_pfl.models.networks import LeNet5 as LeNet5
    from fedjax_pfl.models.networks import NFResNet18 as NFResNet18
    from fedjax_pfl.models.networks import SmallCNN as SmallCNN
    from fedjax_pfl.models.own import from_functions as from_functions
    from fedjax_pfl.models.own_flax import from_flax as from_flax
    from fedjax_pfl.models.recurrent import LSTM as LSTM
    from fedjax_pfl.models.roles import ParameterRoles as ParameterRoles
    from fedjax_pfl.models.transformers import TextEncoder as TextEncoder
    from fedjax_pfl.models.transformers import VisionTransformer as VisionTransformer
else:
    __getattr__, __dir__ = lazy.attach(__name__)
