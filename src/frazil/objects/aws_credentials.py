"""Credentials of a profile or an assumed role, through boto3 where it is installed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

from frazil.errors import InvalidRequest

__all__ = ["boto_credentials"]

LIFETIME_S: Final = 15 * 60
"""Credentials that do not say when they end are asked for again after this time."""
SESSION_NAME: Final = "frazil"


def boto_credentials(
    *, access_key: str, secret_key: str, token: str, profile: str, role: str
) -> Callable[[], dict[str, Any]]:
    """Return a function that gives credentials with their end, asked again before that.

    Raises:
        InvalidRequest: if boto3 is not installed or there is no such profile; the function raises
            it if the role cannot be assumed.
    """
    setting = "objects.s3.role_arn" if role else "objects.s3.profile"
    try:
        import boto3
        import botocore.exceptions
    except ImportError as error:
        raise InvalidRequest(
            "profiles and roles need boto3: pip install boto3", setting=setting
        ) from error
    try:
        session = boto3.Session(
            aws_access_key_id=access_key or None,
            aws_secret_access_key=secret_key or None,
            aws_session_token=token or None,
            profile_name=profile or None,
        )
        own = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise InvalidRequest(
            "credentials of the profile cannot be had", setting="objects.s3.profile", reason=error
        ) from error
    if own is None:
        raise InvalidRequest("there are no credentials to start from", setting=setting)

    def of_profile() -> dict[str, Any]:
        frozen = own.get_frozen_credentials()
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LIFETIME_S)
        return _credential(frozen.access_key, frozen.secret_key, frozen.token, end)

    def of_role() -> dict[str, Any]:
        try:
            answer = session.client("sts", region_name=session.region_name or "us-east-1")
            found = answer.assume_role(RoleArn=role, RoleSessionName=SESSION_NAME)["Credentials"]
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise InvalidRequest(
                "role cannot be assumed", setting="objects.s3.role_arn", reason=error
            ) from error
        return _credential(
            found["AccessKeyId"],
            found["SecretAccessKey"],
            found["SessionToken"],
            found["Expiration"].astimezone(dt.UTC),
        )

    return of_role if role else of_profile


def _credential(
    access_key: str, secret_key: str, token: str | None, end: dt.datetime
) -> dict[str, Any]:
    return {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": token,
        "expires_at": end,
    }
