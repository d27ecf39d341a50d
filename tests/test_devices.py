"""A device is tried before it is used."""

import pytest

from haystack.devices import usable_device
from haystack.errors import InputError


def test_device_that_cannot_be_used_is_named():
    assert usable_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="'cuda:99' cannot be used"):
        usable_device("cuda:99")
    with pytest.raises(InputError, match="'quantum' cannot be used"):
        usable_device("quantum")
