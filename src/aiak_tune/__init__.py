"""aiak-tune: find out what slows a PyTorch training job down, and prove what makes it faster.

Imported inside the user's job too, so this module holds the public names and loads no layer.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
