"""The attention of published models, each a recipe of a few lines, and the door that reads a module of transformers.

.. code-block:: python

    layer = atlas.read(module)                       # an attention module of transformers, as NumPy
    print(layer)                                     # what it computes, a line a step
    output, cache = layer.forward(hidden_states)     # as the module is called
    gradients = layer.backward(d_output, cache)      # by the module's own names: "q_proj.weight", "hidden_states"
    print(atlas.check(module, hidden_states))        # held against the module's own autograd

A class is known by a digest of the source of its forward, of the methods and functions that it calls, and of the
classes of its parts. What is not known is refused: an `UnknownLayer` says what is missing. After `read`, NumPy alone
computes.

To add a class
--------------
1. ``python benchmarks/atlas.py FOLDER`` prints the digest of each attention class of a model that has no reading.
2. If a family in ``atlas/classes`` fits, add the digest to a line of its `READINGS`, or a line. `Dense` there says most
   of what stands around softmax attention. Else write a function ``reading(m, a)``: ``m`` is the module without torch
   (``m.scaling``, ``m.q_proj(x)``, ``m.config.window``), ``a`` its arguments (``a.hidden_states``, None if not given).
   It returns what a recipe returns. It must read every attribute that the source reads and that can change a number.
3. A mechanism that no recipe has is a new one in ``atlas/recipes``, entered by ``@recipe(...)`` with small shapes, and
   named in ``recipes/__init__.py``; a new family is one entry of `FAMILIES` in ``_known.py``.
4. A part or a function that is not known (a norm, a rotary helper) is an entry of `PARTS` or `FUNCTIONS` of the family.
5. ``python benchmarks/atlas.py FOLDER`` must then say "whole". With ``--write``, and no folder, it stores all.
"""

from attention_np.atlas import recipes
from attention_np.atlas._checking import Report, check
from attention_np.atlas._door import read
from attention_np.atlas._layer import Cache, Layer
from attention_np.atlas._mirror import UnknownLayer
from attention_np.atlas.recipes._registry import random

__all__ = ["Cache", "Layer", "Report", "UnknownLayer", "check", "random", "read", "recipes"]
