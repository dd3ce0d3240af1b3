"""ACE gateway: policy, measurement and lossless speculation in front of registered model servers."""

__version__ = "0.1.0"
