# %% [markdown]
# # From CSV files to a decision
#
# For a practitioner: three clinics have a CSV file each and wonder whether to train a model together. Here are the
# files, of real data, so that this page runs anywhere; put your own in their place.

# %%
from pathlib import Path

import polars as pl
from sklearn.datasets import load_breast_cancer

import equipoise as eq

found = load_breast_cancer(as_frame=False)
rows = pl.DataFrame({str(name): found.data[:, j] for j, name in enumerate(found.feature_names[:8])})
rows = rows.with_columns(malignant=pl.Series(found.target == 0)).sample(fraction=1.0, shuffle=True, seed=0)
folder = Path("clinics")
folder.mkdir(exist_ok=True)
for name, part in (("village", rows[:60]), ("town", rows[60:200]), ("city", rows[200:560])):
    part.write_csv(folder / f"{name}.csv")

# %% [markdown]
# ## Two models
#
# One for the average clinic, one in which a clinic that is served badly counts more.

# %%
clinics = {file.stem: pl.read_csv(file) for file in sorted(folder.glob("*.csv"))}
quick = {"run": {"rounds": 10, "score": "accuracy"}, "data": {"test": 0.4}}
average = eq.fit(clinics, label="malignant", settings=quick | {"algorithm": {"name": "scaffold"}})
fair = eq.fit(clinics, label="malignant", settings=quick | {"objective": {"name": "chi2", "rho": 0.05}})

# %% [markdown]
# ## Who is served how
#
# `low` and `high` are what the few held-out rows of a clinic leave open. A difference inside of them decides nothing.

# %%
both = fair.report().join(average.report().select("owner", average="accuracy"), on="owner")
print(both.select("owner", "train_rows", "accuracy", "low", "high", "average", "weight"))

# %% [markdown]
# ## The decision
#
# A rule that can be defended: take the fair model unless the average clinic clearly loses by it.

# %%
result, other = fair.run.outcome, average.run.outcome
clearly_worse = result.summary["mean"] < other.mean_low
chosen = average if clearly_worse else fair
print("take", "the model for the average" if clearly_worse else "the fair model")

# %% [markdown]
# ## New patients

# %%
new = rows[560:].drop("malignant")
print(pl.DataFrame({"predicted": chosen.predict(new), "chance": chosen.predict_proba(new)[:, 1]}))

# %% [markdown]
# `equipoise compare --silos clinics --label malignant` does more with the same files: six methods, what each clinic
# would get alone, and a page to send round.
