-- +goose Up

alter table mcp_server
    add column max_in_flight integer
        constraint mcp_server_max_in_flight check (max_in_flight >= 1);

comment on column mcp_server.max_in_flight is
    'operations that one worker has under way with this server at most; where it is null, a fifth of the worker''s concurrency';

alter table agent_step add column woken_at timestamptz;

comment on column agent_step.woken_at is
    'when a worker last made sure that there is a task for this step, which waits or was left behind by a dead worker';

-- What waits, by when somebody last looked after it. Claims insert rows that run, so only rows that a backend inserted
-- first pay for it, and only while they wait.
create index agent_step_pending on agent_step ((coalesce(woken_at, created_at))) where status = 'pending';

-- What failed is what is asked for first, and it is rare: without this it is looked for among all steps.
create index agent_step_failed on agent_step (created_at desc, id) where status = 'failed';
-- Runs are listed newest first, and removed oldest first.
create index agent_run_created on agent_run (created_at desc, id);

drop view mcp_server_overview;
create view mcp_server_overview as
select v.identifier, v.name, v.url, v.credential, v.auth_placement, v.auth_header_name, v.data_class,
       v.requires_approval, v.enabled, v.operation_timeout_seconds, v.max_in_flight, v.protocol_version, v.protocol_version_at,
       v.import_status, v.last_imported_at, v.tool_count, v.last_contact_at, v.last_latency_ms, v.created_at, v.updated_at,
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

drop index agent_run_created;
drop index agent_step_failed;
drop index agent_step_pending;
alter table agent_step drop column woken_at;
alter table mcp_server drop column max_in_flight;
