"""Evidence that a mechanism keeps its promises, from closed forms and from its own draws.

No Spark and no data are needed: neighbouring counts are invented and go through the code that
releases real ones. docs/verification.md says what is checked, how, and what is not.
"""

from spark_dphist.verification.claim import Claim, Verification
from spark_dphist.verification.run import verify

__all__ = ["Claim", "Verification", "verify"]
