"""Sites whose model, loss and data are PyTorch's; of all this the server needs no PyTorch.

`task.py` makes a task of functions of another library and `spec.py` says what the server knows of a module: both do
without PyTorch. `site.py` makes a task of a module, a loss and a loader, `features.py` its gradient features, `run.py`
a site of a configured run, and `app.py` puts all this in the place of a strategy of Flower's.
"""
