"""Data of many owners, side by side."""

from equipoise.data.shards import Shards as Shards
from equipoise.data.shards import stack as stack
