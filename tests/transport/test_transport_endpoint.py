"""Endpoints: addresses as users type them."""

import pytest

from gleaner.transport.endpoint import endpoint


@pytest.mark.parametrize(
    "text", ["10.0.0.1:7700", "tcp://10.0.0.1:7700", "tcp://[::1]:0", "tcp://head.local:65535"]
)
def test_address_is_accepted_with_or_without_scheme(text: str) -> None:
    assert endpoint(text) == f"tcp://{text.removeprefix('tcp://')}"


@pytest.mark.parametrize(
    "text", ["", "garbage", "10.0.0.1", "10.0.0.1:port", "10.0.0.1:65536", "http://a:1", "a b:1", "::1:7700"]
)
def test_other_addresses_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address like tcp://10"):
        endpoint(text)
