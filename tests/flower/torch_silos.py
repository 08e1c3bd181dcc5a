"""Sites with PyTorch: their files, and functions of theirs that make the module, the loss and the loaders."""

import numpy as np

DIM = 3


def write(folder, sites):
    """A file for each site: 40 rows, whose labels depend on them in another way at each."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        inputs = rng.normal(size=(40, DIM))
        np.savez(folder / f"{site}.npz", inputs=inputs, labels=inputs @ [1.0, k, -1.0] + 0.1 * rng.normal(size=40))
    return folder


def read(site, path):
    with np.load(path) as file:
        return file["inputs"], file["labels"]


def settings(**sections):
    """SCAFF-PD, few rounds, exact; what `sections` say goes over it."""
    base = {
        "name": "modules",
        "model": {"name": "torch", "l2": 0.1},
        "algorithm": {"name": "scaffpd", "steps": 3, "local_lr": 0.05, "rule": {"sigma": 0.5, "theta": 0.5}},
        "run": {"rounds": 4, "precision": "float64", "evaluate_every": 2},
        "federation": {"sites": ["east", "north"], "heavy": 1.0},
    }
    base |= {key: {**base.get(key, {}), **value} for key, value in sections.items()}
    if base["algorithm"]["name"] != "scaffpd":
        del base["algorithm"]["rule"]
    return base


def module():
    import torch

    return torch.nn.Linear(DIM, 1, bias=False, dtype=torch.float64)


def loaders(site, path, kind):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    inputs, labels = (torch.tensor(a) for a in read(site, path))
    inputs, labels = inputs.to(kind), labels.to(kind) if kind == torch.float64 else (labels > 0).long()
    parts = [TensorDataset(inputs[:30], labels[:30]), TensorDataset(inputs[30:], labels[30:])]
    return DataLoader(parts[0], batch_size=10, shuffle=True), DataLoader(parts[1], batch_size=7, shuffle=True)


def regression(site, path):
    import torch

    model = module()
    train, test = loaders(site, path, torch.float64)
    return model, lambda made, wanted: torch.nn.functional.mse_loss(made[:, 0], wanted), train, test


def with_scores(site, path):
    """Regression, and two scores of the site's own."""
    import torch

    from equipoise.evaluation import ScoreRecord

    def within_half(outputs, labels):
        assert labels.dtype == torch.float64
        return (outputs[:, 0] - labels).abs().lt(0.5).double().mean()

    def worst_error(outputs, labels):
        return (outputs[:, 0] - labels).abs().max().item()

    scores = {"within_half": within_half, "worst_error": ScoreRecord(worst_error, higher_is_better=False)}
    return *regression(site, path), scores


def wrong_scores(site, path):
    return *regression(site, path), ["within_half"]


def classification(site, path):
    import torch

    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(DIM), torch.nn.Linear(DIM, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    return model, torch.nn.CrossEntropyLoss(), *loaders(site, path, torch.float32)


def different(site, path):
    import torch

    _, loss, *rest = regression(site, path)
    return torch.nn.Linear(DIM, 1, bias=site == "east", dtype=torch.float64), loss, *rest


def wrong(site, path):
    return read(site, path)


HIDDEN, SEED = 4, 5


def network_of_jax():
    """A network of JAX, and its parameters: `network` copies them."""
    import jax

    from equipoise import models

    model = models.mlp(DIM, [HIDDEN], 2)
    return model, model.init(jax.random.key(SEED))


def network(site, path):
    """Two layers with weights of JAX's."""
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(DIM, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 2)).double()
    _, layers = network_of_jax()
    with torch.no_grad():
        for mine, layer in zip((module[0], module[2]), layers, strict=True):
            mine.weight.copy_(torch.tensor(np.array(layer.weight)))
            mine.bias.copy_(torch.tensor(np.array(layer.bias)))
    rows = [[(x.double(), y) for x, y in loader] for loader in loaders(site, path, torch.float32)]
    return module, torch.nn.CrossEntropyLoss(), *rows


def with_softmax(site, path):
    import torch

    module, *rest = network(site, path)
    return torch.nn.Sequential(*module, torch.nn.Softmax(dim=1)), *rest


def with_batch_norm(site, path):
    import torch

    module, *rest = network(site, path)
    return torch.nn.Sequential(module[0], torch.nn.BatchNorm1d(HIDDEN).double(), *module[1:]), *rest
