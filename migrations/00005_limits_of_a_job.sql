-- +goose Up

alter table agent_step
    add column job_timeout interval
        constraint agent_step_job_timeout check (job_timeout > interval '0'),
    add column job_deadline timestamptz;

comment on column agent_step.task_id is
    'the task that brought the step last, or that it waits with, where its id is not the step''s';
comment on column agent_step.job_timeout is
    'what the job itself may take once it is begun (asynq''s Timeout): a task that is made for the row in place of a lost one gets it';
comment on column agent_step.job_deadline is
    'when the job itself must be over (asynq''s Deadline): a task that is made for the row in place of a lost one gets it';

-- +goose Down

alter table agent_step
    drop column job_timeout,
    drop column job_deadline;
comment on column agent_step.task_id is
    'the task that the step waited with in the queue, where its id is not the step''s';
