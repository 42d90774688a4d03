"""Replaces Azure's test tools for the SDK's tests, with a Malote server as the namespace.

Only live tests: nothing is recorded or played back. Each test gets its own resources, which are removed after it, even
if they could be shared.
"""

import functools
import inspect
import os
import time
import uuid

from azure.core.credentials import AccessToken


class AzureTestError(Exception):
    pass


class ReservedResourceNameError(Exception):
    pass


class FakeResource:
    def __init__(self, name, id):
        self.name, self.id = name, id


class AzureRecordedTestCase:
    @staticmethod
    def await_prepared_test(test):
        return test


AzureMgmtRecordedTestCase = AzureRecordedTestCase


class Preparer:
    """Wraps a test: passes it the values of `prepared`, and cleans up afterwards."""

    def prepared(self, given):
        """Returns names and values, and a clean-up function."""
        raise NotImplementedError

    def __call__(self, test):
        if inspect.iscoroutinefunction(test):

            async def wrapper(case, **given):
                more, remove = self.prepared(given)
                try:
                    await test(case, **taken(test, given | more))
                finally:
                    remove()

        else:

            def wrapper(case, **given):
                more, remove = self.prepared(given)
                try:
                    test(case, **taken(test, given | more))
                finally:
                    remove()

        functools.update_wrapper(wrapper, test)
        wrapper.needs_service = True
        # pytest provides the arguments that no preparer provides.
        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in self.gives()]
        wrapper.__signature__ = signature.replace(parameters=left)
        return wrapper

    def gives(self):
        return ()


def taken(test, given):
    """The values that a test accepts. A preparer passes all values on."""
    places = inspect.signature(test).parameters.values()
    if any(place.kind is place.VAR_KEYWORD for place in places):
        return given
    return {place.name: given[place.name] for place in places if place.name in given}


class AzureMgmtPreparer(Preparer):
    """The base of the tests' preparers: each creates one resource with the resource manager."""

    is_live = True
    resource = None

    def __init__(self, name_prefix="", random_name_length=24, *, random_name_enabled=True, **_recording):
        self.name_prefix = name_prefix
        self.random_name_enabled = random_name_enabled
        self.moniker = None

    def set_cache(self, *_key):
        pass

    def create_mgmt_client(self, kind, **_where):
        return kind()

    def prepared(self, given):
        name = f"{self.name_prefix}{uuid.uuid4().hex[:12]}"
        made = self.create_resource(name, **given)
        return made, lambda: self.remove_resource(name, **given)


class PowerShellPreparer(Preparer):
    """Provides the namespace. Other arguments of the test are not used."""

    def __init__(self, _service, **fakes):
        self.fakes = fakes

    def gives(self):
        return self.fakes

    def prepared(self, _given):
        namespace = {
            "servicebus_connection_str": os.environ["SERVICEBUS_CONNECTION_STRING"],
            "servicebus_fully_qualified_namespace": os.environ["SERVICEBUS_ENDPOINT"],
        }
        return self.fakes | namespace, lambda: None


class RandomNameResourceGroupPreparer(Preparer):
    def __init__(self, **_options):
        pass

    def prepared(self, _given):
        return {}, lambda: None


CachedResourceGroupPreparer = RandomNameResourceGroupPreparer


class _Token:
    """A token of this server instead of one from Entra ID."""

    def get_token(self, *_scopes, **_options):
        return AccessToken(os.environ["SERVICEBUS_TOKEN"], int(time.time()) + 3600)

    def close(self):
        pass


class _AsyncToken(_Token):
    async def get_token(self, *_scopes, **_options):
        return super().get_token()

    async def close(self):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_why):
        pass


def get_credential(is_async=False, **_options):
    return _AsyncToken() if is_async else _Token()


def get_region_override(default):
    return default


def recorded_by_proxy(test):
    return test


def add_general_regex_sanitizer(**_options):
    pass


def set_custom_default_matcher(**_options):
    pass
