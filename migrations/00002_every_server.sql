-- +goose Up

alter table mcp_server
    add column headers json,
    add column oauth_token_url text,
    add column oauth_client_id text,
    add column oauth_scope text,
    add column oauth_parameters json,
    add column oauth_secret_in_body boolean not null default false,
    add column tls_ca text,
    add column tls_certificate text,
    add column tls_key text,
    add constraint mcp_server_headers check (json_typeof(headers) = 'object'),
    add constraint mcp_server_oauth_parameters check (json_typeof(oauth_parameters) = 'object'),
    add constraint mcp_server_oauth check ((oauth_token_url is null) = (oauth_client_id is null)),
    add constraint mcp_server_oauth_settings check (oauth_token_url is not null
        or (oauth_scope is null and oauth_parameters is null and not oauth_secret_in_body)),
    add constraint mcp_server_oauth_secret check (oauth_token_url is null or auth_placement <> 'none'),
    add constraint mcp_server_tls check ((tls_certificate is null) = (tls_key is null));

comment on column mcp_server.credential is
    'where the secret is found, such as env:DOCS_TOKEN or file:/run/secrets/docs; never the secret itself. With oauth_token_url it is the client''s secret';
comment on column mcp_server.headers is
    'further headers on every request: {"NAME": "VALUE"}, where a value may be a reference such as env:NAME or file:/path';
comment on column mcp_server.oauth_token_url is
    'where an access token is asked for (OAuth 2.0 client credentials); null: the credential is sent as it is';
comment on column mcp_server.oauth_parameters is 'what else the token request says, such as {"audience": "…"} or {"resource": "…"}';
comment on column mcp_server.oauth_secret_in_body is
    'whether the client''s secret stands in the body of the token request; otherwise it is sent by HTTP basic authentication';
comment on column mcp_server.tls_ca is
    'where the certificates (PEM) are found that this server is trusted by beside the system''s: env:NAME or file:/path';
comment on column mcp_server.tls_certificate is 'where the client certificate (PEM) is found that is shown to this server';
comment on column mcp_server.tls_key is 'where its private key (PEM) is found';

alter table mcp_tool
    add column model_schema json,
    add column not_offered text,
    add column not_callable text,
    add constraint mcp_tool_model_schema check (model_schema is null or not_offered is null);

comment on column mcp_tool.model_schema is
    'the input schema in a form that model APIs take; null where there is none (see not_offered) or no import has looked yet';
comment on column mcp_tool.not_offered is 'why the tool cannot be offered to a model; a step can call it all the same';
comment on column mcp_tool.not_callable is 'why legwork cannot call the tool at all; a step that names it is refused';

drop view mcp_server_overview;
create view mcp_server_overview as
select v.identifier, v.name, v.url, v.credential, v.auth_placement, v.auth_header_name, v.data_class,
       v.requires_approval, v.enabled, v.operation_timeout_seconds, v.protocol_version, v.protocol_version_at, v.import_status,
       v.last_imported_at, v.tool_count, v.last_contact_at, v.last_latency_ms, v.created_at, v.updated_at,
       v.headers, v.oauth_token_url, v.oauth_client_id, v.oauth_scope, v.oauth_parameters, v.oauth_secret_in_body,
       v.tls_ca, v.tls_certificate, v.tls_key,
       e.kind as latest_error_kind, e.message as latest_error_message, e.occurred_at as latest_error_at
from mcp_server v
left join lateral (
    select kind, message, occurred_at
    from import_error
    where server = v.identifier
      and kind <> 'tool_skipped'
      -- Not what an import that went well has settled since, nor what a removed server of this name left.
      and occurred_at > greatest(v.last_imported_at, v.created_at)
    order by occurred_at desc, id desc
    limit 1
) e on true;

comment on view mcp_server_overview is
    'each server with the latest import error, which is empty once an import went well';

-- +goose Down

drop view mcp_server_overview;
create view mcp_server_overview as
select v.identifier, v.name, v.url, v.credential, v.auth_placement, v.auth_header_name, v.data_class,
       v.requires_approval, v.enabled, v.operation_timeout_seconds, v.protocol_version, v.protocol_version_at, v.import_status,
       v.last_imported_at, v.tool_count, v.last_contact_at, v.last_latency_ms, v.created_at, v.updated_at,
       e.kind as latest_error_kind, e.message as latest_error_message, e.occurred_at as latest_error_at
from mcp_server v
left join lateral (
    select kind, message, occurred_at
    from import_error
    where server = v.identifier
      and kind <> 'tool_skipped'
      and occurred_at > greatest(v.last_imported_at, v.created_at)
    order by occurred_at desc, id desc
    limit 1
) e on true;
comment on view mcp_server_overview is
    'each server with the latest import error, which is empty once an import went well';

alter table mcp_tool
    drop column model_schema,
    drop column not_offered,
    drop column not_callable;
alter table mcp_server
    drop column headers,
    drop column oauth_token_url,
    drop column oauth_client_id,
    drop column oauth_scope,
    drop column oauth_parameters,
    drop column oauth_secret_in_body,
    drop column tls_ca,
    drop column tls_certificate,
    drop column tls_key;
comment on column mcp_server.credential is
    'where the secret is found, such as env:DOCS_TOKEN or file:/run/secrets/docs; never the secret itself';
