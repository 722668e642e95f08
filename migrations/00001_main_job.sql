-- +goose Up

-- The numbers of import claims. They never repeat, so that a server that was removed and added again is not settled by an
-- import of the one before.
create sequence mcp_server_import_claim;

create table mcp_server (
    identifier text primary key
        constraint mcp_server_identifier check (identifier ~ '^[a-z0-9_]{1,32}$'),
    name text not null,
    url text not null
        constraint mcp_server_url check (url <> ''),
    credential text not null default '',
    auth_placement text not null default 'none'
        constraint mcp_server_auth_placement check (auth_placement in ('none', 'bearer', 'header')),
    auth_header_name text,
    data_class text
        constraint mcp_server_data_class check (data_class <> ''),
    requires_approval boolean not null default true,
    enabled boolean not null default false,
    operation_timeout_seconds integer
        constraint mcp_server_operation_timeout check (operation_timeout_seconds >= 1),
    protocol_version text,
    protocol_version_at timestamptz,
    import_status text not null default 'never_imported'
        constraint mcp_server_import_status check (import_status in ('never_imported', 'ok', 'partial', 'error')),
    last_imported_at timestamptz,
    tool_count integer not null default 0,
    last_contact_at timestamptz,
    last_latency_ms bigint,
    import_claim bigint not null default 0,
    import_claimed_by text,
    import_lease_expires_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint mcp_server_credential check ((auth_placement = 'none') = (credential = '')),
    constraint mcp_server_auth_header_name
        check ((auth_placement = 'header') = (coalesce(auth_header_name, '') <> ''))
);

comment on column mcp_server.credential is
    'where the secret is found, such as env:DOCS_TOKEN or file:/run/secrets/docs; never the secret itself';
comment on column mcp_server.data_class is
    'what may be sent there, in the operator''s own words; a server without one is inert: nothing is sent to it';
comment on column mcp_server.requires_approval is
    'whether a call that a model chose waits for a person; a step that a backend enqueues itself does not';
comment on column mcp_server.operation_timeout_seconds is
    'this server''s own budget per operation; where it is null, the installation''s holds';
comment on column mcp_server.protocol_version is
    'the protocol revision last agreed on with the server; legacy: it answers without a handshake and never said; null: nobody has asked yet';
comment on column mcp_server.protocol_version_at is 'when that was';
comment on column mcp_server.last_imported_at is 'the last import that went well; an import that failed does not move it';
comment on column mcp_server.tool_count is 'tools that the server advertised in the last import that went well, without those skipped';
comment on column mcp_server.last_latency_ms is 'what the leg took that ended the last completed operation';
comment on column mcp_server.import_claim is
    'raised by every import that begins: only the import that holds the latest number may settle';
comment on column mcp_server.updated_at is 'when an operator last changed the row';

create table mcp_tool (
    name text primary key
        constraint mcp_tool_name check (name ~ '^[a-zA-Z0-9_-]{1,64}$'),
    server text not null references mcp_server (identifier) on delete cascade,
    remote_name text not null,
    title text,
    description text,
    input_schema json,
    annotations json,
    enabled boolean not null default false,
    effect text not null default 'non_idempotent_write'
        constraint mcp_tool_effect check (effect in ('non_idempotent_write', 'idempotent_write', 'read_only')),
    orphaned_at timestamptz,
    imported_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    -- Also what a claim looks a tool's effect up by.
    constraint mcp_tool_remote_name unique (server, remote_name)
);

comment on column mcp_tool.name is 'the name in this installation; a tool keeps it for good';
comment on column mcp_tool.remote_name is 'the name as it is sent to the server';
comment on column mcp_tool.input_schema is 'as the server advertised it, byte for byte: json, not jsonb, keeps order and numbers';
comment on column mcp_tool.annotations is 'what the server says about its tool; for display, never read to decide anything';
comment on column mcp_tool.effect is
    'declared by the operator: whether a call that was interrupted may be repeated (read_only, idempotent_write) or not';
comment on column mcp_tool.orphaned_at is 'when an import no longer found the tool; null again once it returns';
comment on column mcp_tool.imported_at is 'when the tool was first imported';

create table agent_run (
    id uuid primary key,
    status text not null default 'running'
        constraint agent_run_status check (status in ('running', 'succeeded', 'failed', 'cancelled')),
    cancelled_by text,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    constraint agent_run_finished check ((status = 'running') = (finished_at is null)),
    constraint agent_run_cancelled check ((status = 'cancelled') = (cancelled_by is not null))
);

create table agent_step (
    id uuid primary key,
    run_id uuid references agent_run (id),
    position integer,
    kind text not null default 'tool'
        constraint agent_step_kind check (kind in ('tool', 'model')),
    -- No foreign keys: a step that names an unknown server, or nothing that can be read, still gets its row.
    server text,
    tool text,
    -- json, not jsonb: order and numbers beyond 2^53 must survive as they were sent.
    arguments json,
    status text not null default 'pending'
        constraint agent_step_status check (status in
            ('pending', 'awaiting_approval', 'running', 'succeeded', 'failed', 'cancelled')),
    claim bigint not null default 0,
    claimed_by text,
    lease_expires_at timestamptz,
    failure_kind text,
    failure_message text,
    asked text
        constraint agent_step_asked check (asked in ('no', 'unknown', 'yes')),
    result json,
    budget_ms bigint,
    legs json not null default '[]',
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    constraint agent_step_lease check ((status = 'running') = (lease_expires_at is not null)),
    constraint agent_step_claimed check (status <> 'running' or (claimed_by is not null and claim > 0)),
    constraint agent_step_finished check ((status in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint agent_step_failure check ((status in ('failed', 'cancelled')) = (failure_kind is not null)),
    constraint agent_step_failure_message check ((failure_kind is null) = (failure_message is null)),
    constraint agent_step_failure_asked check (failure_kind is not null or asked is null)
);

comment on column agent_step.tool is 'the tool''s remote name, as it is sent to the server';
comment on column agent_step.claim is
    'raised by every worker that takes the step: only the worker that holds the latest number may settle it';
comment on column agent_step.claimed_by is 'the worker that runs the step, or ran it last';
comment on column agent_step.lease_expires_at is
    'the worker must have settled by then; a step still running after it was interrupted';
comment on column agent_step.asked is
    'of a failure: was the server asked? no: it never saw the request; yes: it answered; unknown: it may have acted on it';
comment on column agent_step.budget_ms is 'what the operation was allowed to take in all; null where none was begun';
comment on column agent_step.legs is
    'the HTTP requests of the operation in the order sent, and what each took: [{"method","granted_ms","elapsed_ms","outcome","status"}]';

-- Steps are listed newest first; without this every listing sorts the whole table.
create index agent_step_created on agent_step (created_at desc, id);
-- Finds steps whose worker died. Only rows that run are in it, so it stays as small as the load.
create index agent_step_lease on agent_step (lease_expires_at) where status = 'running';
-- The steps of one run in their order; cancelling a run walks it too. Steps without a run do not pay for it.
create index agent_step_run on agent_step (run_id, position) where run_id is not null;

create table import_error (
    id bigint generated always as identity primary key,
    -- No foreign key: an import of an unknown server is told here too, and a removed server leaves its history.
    server text,
    kind text not null
        constraint import_error_kind check (kind <> ''),
    tool text,
    message text not null,
    asked text
        constraint import_error_asked check (asked in ('no', 'unknown', 'yes')),
    budget_ms bigint,
    legs json not null default '[]',
    task_id text,
    occurred_at timestamptz not null default clock_timestamp()
);

comment on table import_error is 'what imports could not do, one row each; rows are added and never changed';
comment on column import_error.kind is 'a failure kind: the import was refused; or tool_skipped: it went well without this tool';
comment on column import_error.asked is
    'was the server asked? no: it never saw the request; yes: it answered; unknown: it may have seen it';
comment on column import_error.legs is
    'the HTTP requests of the import in the order sent: [{"method","granted_ms","elapsed_ms","outcome","status"}]';

-- The latest error of a server, for the overview, and a server's errors newest first.
create index import_error_server on import_error (server, occurred_at desc);

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
      -- Not what an import that went well has settled since, nor what a removed server of this name left.
      and occurred_at > greatest(v.last_imported_at, v.created_at)
    order by occurred_at desc, id desc
    limit 1
) e on true;

comment on view mcp_server_overview is
    'each server with the latest import error, which is empty once an import went well';

-- +goose Down

drop view mcp_server_overview;
drop table import_error;
drop table agent_step;
drop table agent_run;
drop table mcp_tool;
drop table mcp_server;
drop sequence mcp_server_import_claim;
