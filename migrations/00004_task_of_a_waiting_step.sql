-- +goose Up

alter table agent_step add column task_id text;

comment on column agent_step.task_id is
    'the task that the step waited with in the queue, where its id is not the step''s';

-- A server's steps, newest first. Without this those of a server that has few are looked for in the whole table.
create index agent_step_server on agent_step (server, created_at desc, id);

-- +goose Down

drop index agent_step_server;
alter table agent_step drop column task_id;
