"""Tables of many owners, a file each: read, split, and encoded alike without any row leaving its owner.

folder.py      a folder of silo files as a federation
site.py        one silo by itself
files.py       from a file to a table
cells.py       what a cell says: a number, a date, a text, nothing
written.py     how people write numbers and dates
conventions.py which way a column is written, by all its cells
statistics.py  what a silo tells about its table
agreement.py   one encoding from what all silos told
encoding.py    from a table's columns to a model's inputs
"""

from equipoise.data.silos.agreement import agree as agree
from equipoise.data.silos.encoding import Encoding as Encoding
from equipoise.data.silos.files import SEPARATOR as SEPARATOR
from equipoise.data.silos.files import frame_of as frame_of
from equipoise.data.silos.files import is_separator as is_separator
from equipoise.data.silos.files import scan as scan
from equipoise.data.silos.files import silo_files as silo_files
from equipoise.data.silos.folder import Silos as Silos
from equipoise.data.silos.folder import SiloWarning as SiloWarning
from equipoise.data.silos.folder import read as read
from equipoise.data.silos.folder import read_with as read_with
from equipoise.data.silos.site import Site as Site
from equipoise.data.silos.site import open_site as open_site
from equipoise.data.silos.site import site_of as site_of
from equipoise.data.silos.statistics import Options as Options
from equipoise.data.silos.statistics import Statistics as Statistics
