"""Nothing is recorded, so nothing is sanitized."""


def add_remove_header_sanitizer(**_options):
    pass


def add_general_regex_sanitizer(**_options):
    pass


def add_oauth_response_sanitizer(**_options):
    pass
