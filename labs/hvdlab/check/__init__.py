"""`hvdlab check`: run a Horovod script for a few steps and name its distributed mistakes."""

from hvdlab.check.command import EPILOG as EPILOG
from hvdlab.check.command import add_arguments as add_arguments
from hvdlab.check.command import check as check
from hvdlab.check.command import main as main
