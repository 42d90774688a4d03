"""The resource manager's types, as the preparers use them."""

import enum


class AccessRights(str, enum.Enum):
    manage = MANAGE = "Manage"
    send = SEND = "Send"
    listen = LISTEN = "Listen"


class _Model:
    def __init__(self, **properties):
        self.properties = properties


class SBQueue(_Model):
    pass


class SBSubscription(_Model):
    pass


class SBAuthorizationRule:
    def __init__(self, *, rights):
        self.rights = rights
