"""Handlers of /v1/skills: skills, their versions, and their archives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError, invalid, missing_parameter, not_found
from antwort.api.objects import (
    Deleted,
    DeletedSkillVersion,
    SkillObject,
    SkillPage,
    SkillVersionObject,
    SkillVersionPage,
    UpdateSkill,
)
from antwort.containers.skills.bundle import (
    MAX_FILES,
    MAX_UNPACKED_BYTES,
    SkillBundle,
    SkillFile,
    bundle_of,
    read_archive,
)
from antwort.containers.skills.library import SkillLibrary
from antwort.engine.stores import SkillRecord, SkillVersionRecord
from antwort.http.bodies import json_answer, read_json, stream_body
from antwort.http.openapi import BINARY, ApiRoute, Operation, Schema
from antwort.http.paging import object_page, paging_query, parse_page_query
from antwort.http.services import owner_of, services_of

_MAX_BODY = MAX_UNPACKED_BYTES + (1 << 20)
_ZIP = "application/zip"
_FIELDS = ("files", "files[]")


async def create(request: Request) -> HttpResponse:
    """Create a skill from its files, or from a ZIP archive of them."""
    _, bundle = await receive_skill(request)
    return json_answer(_skill_object(await _library(request).create(owner_of(request), bundle)))


async def list_skills(request: Request) -> HttpResponse:
    """List skills."""
    page = await services_of(request).store.list_skills(owner_of(request), parse_page_query(request))
    return json_answer(object_page(SkillPage, page, _skill_object))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a skill."""
    return json_answer(_skill_object(await _library(request).get(owner_of(request), _id(request))))


async def update(request: Request) -> HttpResponse:
    """Set the default version of a skill."""
    body = await read_json(request, UpdateSkill)
    record = await _library(request).set_default(owner_of(request), _id(request), body.default_version)
    return json_answer(_skill_object(record))


async def delete(request: Request) -> HttpResponse:
    """Delete a skill with its versions."""
    await _library(request).delete(owner_of(request), _id(request))
    return json_answer(Deleted(id=_id(request), object="skill.deleted"))


async def get_content(request: Request) -> HttpResponse:
    """Download the default version of a skill as a ZIP archive."""
    return await _archive(request, None)


# ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_version(request: Request) -> HttpResponse:
    """Create the next version of a skill."""
    await _library(request).get(owner_of(request), _id(request))  # before the body is read
    fields, bundle = await receive_skill(request)
    is_default = fields.get("default", "false").lower()
    if is_default not in ("true", "false"):
        raise invalid("'default' must be true or false.", param="default")
    version = await _library(request).add_version(
        owner_of(request), _id(request), bundle, is_default=is_default == "true"
    )
    return json_answer(_version_object(version))


async def list_versions(request: Request) -> HttpResponse:
    """List the versions of a skill."""
    query = parse_page_query(request)
    page = await services_of(request).store.list_skill_versions(owner_of(request), _id(request), query)
    if page is None:
        raise not_found("Skill", _id(request))
    return json_answer(object_page(SkillVersionPage, page, _version_object))


async def retrieve_version(request: Request) -> HttpResponse:
    """Retrieve a version of a skill."""
    record = await _library(request).get_version(owner_of(request), _id(request), _version(request))
    return json_answer(_version_object(record))


async def delete_version(request: Request) -> HttpResponse:
    """Delete a version of a skill that is not the default one."""
    deleted = await _library(request).delete_version(owner_of(request), _id(request), _version(request))
    return json_answer(DeletedSkillVersion(id=deleted.id, version=str(deleted.version)))


async def get_version_content(request: Request) -> HttpResponse:
    """Download a version of a skill as a ZIP archive."""
    return await _archive(request, _version(request))


async def _archive(request: Request, version: str | None) -> HttpResponse:
    record, archive = await _library(request).read(owner_of(request), _id(request), version)
    headers = {
        "content-disposition": f'attachment; filename="{record.name}-{record.version}.zip"',
        "x-content-type-options": "nosniff",
    }
    return HttpResponse(archive, media_type=_ZIP, headers=headers)


# ── the form ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def receive_skill(request: Request) -> tuple[dict[str, str], SkillBundle]:
    """The fields of the form, and the skill that its files are: one ZIP archive, or the files themselves."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise missing_parameter("files")
    async with aclosing(stream_body(request, _MAX_BODY)) as body:
        form = await _parse(request, body)
    try:
        uploads = [part for name in _FIELDS for part in form.getlist(name) if isinstance(part, UploadFile)]
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        if not uploads:
            raise missing_parameter("files")
        files = [SkillFile(upload.filename or "", await upload.read()) for upload in uploads]
    finally:
        await form.close()
    return fields, await asyncio.to_thread(_bundle, files)


async def _parse(request: Request, body: AsyncGenerator[bytes, None]) -> FormData:
    parser = MultiPartParser(request.headers, body, max_files=MAX_FILES, max_fields=4, max_part_size=1024)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise invalid(f"The form is not valid: {error.message}", code="invalid_form") from error


def _bundle(files: list[SkillFile]) -> SkillBundle:
    (first, *others) = files
    if not others and (first.path.lower().endswith(".zip") or first.content.startswith(b"PK")):
        return read_archive(first.content, "files")
    return bundle_of(files, "files")


# ── response bodies and parameters ───────────────────────────────────────────────────────────────────────────────────


def _skill_object(record: SkillRecord) -> SkillObject:
    return SkillObject(
        id=record.id,
        created_at=record.created_at,
        default_version=str(record.default_version),
        latest_version=str(record.latest_version),
        name=record.name,
        description=record.description,
    )


def _version_object(record: SkillVersionRecord) -> SkillVersionObject:
    return SkillVersionObject(
        id=record.id,
        created_at=record.created_at,
        skill_id=record.skill_id,
        version=str(record.version),
        name=record.name,
        description=record.description,
    )


def _library(request: Request) -> SkillLibrary:
    skills = services_of(request).skills
    if skills is None:
        raise ApiError(404, "This server has no skills: there are no containers to use them in.", code="unknown_url")
    return skills


def _id(request: Request) -> str:
    return request.path_params["skill_id"]


def _version(request: Request) -> str:
    return request.path_params["version"]


_SKILLS = "/v1/skills"
_SKILL = _SKILLS + "/{skill_id}"
_VERSIONS = _SKILL + "/versions"
_VERSION = _VERSIONS + "/{version}"
_FILES: Schema = {"oneOf": [{"type": "array", "items": BINARY}, BINARY]}
_FORM: Schema = {"type": "object", "required": ["files"], "properties": {"files": _FILES}}
_VERSION_FORM: Schema = {
    "type": "object",
    "required": ["files"],
    "properties": {"files": _FILES, "default": {"type": "boolean"}},
}

routes = [
    ApiRoute(
        "POST", _SKILLS, create, Operation("createSkill", returns=SkillObject, form=_FORM, links={"skill_id": "/id"})
    ),
    ApiRoute("GET", _SKILLS, list_skills, Operation("listSkills", returns=SkillPage, query=paging_query())),
    ApiRoute("GET", _SKILL, retrieve, Operation("getSkill", returns=SkillObject)),
    ApiRoute("POST", _SKILL, update, Operation("updateSkill", UpdateSkill, SkillObject)),
    ApiRoute("DELETE", _SKILL, delete, Operation("deleteSkill", returns=Deleted)),
    ApiRoute("GET", _SKILL + "/content", get_content, Operation("getSkillContent", content_types=(_ZIP,))),
    ApiRoute(
        "POST",
        _VERSIONS,
        create_version,
        Operation("createSkillVersion", returns=SkillVersionObject, form=_VERSION_FORM, links={"version": "/version"}),
    ),
    ApiRoute(
        "GET",
        _VERSIONS,
        list_versions,
        Operation("listSkillVersions", returns=SkillVersionPage, query=paging_query()),
    ),
    ApiRoute("GET", _VERSION, retrieve_version, Operation("getSkillVersion", returns=SkillVersionObject)),
    ApiRoute("DELETE", _VERSION, delete_version, Operation("deleteSkillVersion", returns=DeletedSkillVersion)),
    ApiRoute(
        "GET",
        _VERSION + "/content",
        get_version_content,
        Operation("getSkillVersionContent", content_types=(_ZIP,)),
    ),
]
