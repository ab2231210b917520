-- The tables, the publication and the procedures of the workloads W1 to W4.
--
--   W1  CALL w1(2000, 1)                    2 M narrow changes, 60/30/10 % insert/update/delete, in
--                                           transactions of 1000: what an OLTP table looks like
--   W2  CALL w2(400, 1)                     400 k changes of 30 mixed columns: what the casts cost
--   W3  pgbench -n -c 4 -j 1 -t 50000       200 k transactions of 4 changes over 4 tables that take
--                                           turns: what small transactions and many relations cost
--   W4  CALL w4(1000000)                    one transaction of 1 M inserts: what spilling costs
--
-- The numbers are those of scale 1; workloads.py multiplies them. Server settings of all figures:
-- fsync=off, shared_buffers=512MB, jit=off, autovacuum=off, wal_level=logical, the rest default.
-- All values follow from the row's number alone, so two runs write the same rows.

CREATE TABLE bench_narrow (
    id bigint PRIMARY KEY, a int, b text, c timestamptz, d numeric(12,2)
);

CREATE TABLE bench_wide (
    id bigint PRIMARY KEY, i2 smallint, i4 int, i8 bigint, i4b int,
    t1 text, t2 text, t3 varchar(40), t4 text, ch char(3),
    j1 jsonb, j2 jsonb, b1 bool, b2 bool, u1 uuid, u2 uuid,
    n1 numeric(12,2), n2 numeric(20,6),
    ts1 timestamptz, ts2 timestamp, ts3 timestamptz, dt date, dt2 date,
    f8 float8, f4 float4, f8b float8, ai int[], at text[], by bytea, nl text
);

-- Receives one row after each workload. A reader that ends only when it sees something past its end
-- position (pg_recvlogical --endpos) would else wait some ten seconds for a keepalive.
CREATE TABLE bench_tail (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, note text);

CREATE PUBLICATION pub FOR ALL TABLES;

-- Inserts walk up from "base", deletes follow from below, updates hit a pseudo-random row between.
CREATE PROCEDURE w1(transactions int, base bigint) LANGUAGE plpgsql AS $$
DECLARE
    next_id bigint := base;
    lowest_id bigint := base;
    target_id bigint;
BEGIN
    FOR t IN 1..transactions LOOP
        FOR k IN 0..999 LOOP
            IF k % 10 < 6 THEN
                INSERT INTO bench_narrow VALUES (
                    next_id, (next_id * 7919) % 1000003,
                    'value-' || lpad((next_id % 1000000)::text, 14, '0'),
                    '2026-01-01'::timestamptz + (next_id % 31536000) * interval '1 second'
                        + (next_id % 1000000) * interval '1 microsecond',
                    (next_id % 10000000) / 100.0);
                next_id := next_id + 1;
            ELSIF k % 10 < 9 THEN
                target_id := lowest_id
                    + ((k::bigint * 7919 + t * 104729) % greatest(next_id - lowest_id - 1, 1));
                UPDATE bench_narrow SET a = a + 1, d = d + 1.01, c = c + interval '1 second'
                    WHERE id = target_id;
                IF NOT FOUND THEN
                    INSERT INTO bench_narrow VALUES (
                        next_id, 1, 'value-' || lpad((next_id % 1000000)::text, 14, '0'),
                        '2026-01-01', 1.00);
                    next_id := next_id + 1;
                END IF;
            ELSE
                DELETE FROM bench_narrow WHERE id = lowest_id;
                lowest_id := lowest_id + 1;
            END IF;
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE w2(transactions int, base bigint) LANGUAGE plpgsql AS $$
DECLARE
    next_id bigint := base;
    lowest_id bigint := base;
    target_id bigint;
BEGIN
    FOR t IN 1..transactions LOOP
        FOR k IN 0..999 LOOP
            IF k % 10 < 6 THEN
                INSERT INTO bench_wide VALUES (
                    next_id, next_id % 30000, (next_id * 7919) % 1000003, next_id * 1000003,
                    -next_id % 100000,
                    'text-' || md5(next_id::text), repeat('lorem ipsum ', 3) || next_id,
                    'v' || next_id, 'wide row "quoted", \back\ ' || next_id, 'abc',
                    jsonb_build_object('k', next_id, 'name', 'n' || next_id,
                                       'tags', jsonb_build_array('a', 'b', next_id % 7)),
                    '{"a": {"b": [1, 2, 3]}}', next_id % 2 = 0, next_id % 3 = 0,
                    md5(next_id::text)::uuid, md5((next_id + 1)::text)::uuid,
                    (next_id % 10000000) / 100.0, next_id / 7.0,
                    '2026-01-01'::timestamptz + (next_id % 31536000) * interval '1 second',
                    '2025-01-01'::timestamp + (next_id % 315360) * interval '1.001 second',
                    '2024-01-01'::timestamptz + (next_id % 31536000) * interval '1 second',
                    '2020-01-01'::date + (next_id % 3000)::int,
                    '2000-01-01'::date + (next_id % 9000)::int,
                    next_id / 3.0, (next_id % 1000) / 8.0, sqrt(next_id),
                    ARRAY[next_id % 10, 2, 3], ARRAY['x', 'y ' || next_id, NULL],
                    decode(md5(next_id::text), 'hex'), NULL);
                next_id := next_id + 1;
            ELSIF k % 10 < 9 THEN
                -- A row that is gone already is no change; the rows are counted in the stream.
                target_id := lowest_id
                    + ((k::bigint * 7919 + t * 104729) % greatest(next_id - lowest_id - 1, 1));
                UPDATE bench_wide
                    SET i4 = i4 + 1, n1 = n1 + 1.01, ts1 = ts1 + interval '1 second', t3 = 'u' || k
                    WHERE id = target_id;
            ELSE
                DELETE FROM bench_wide WHERE id = lowest_id;
                lowest_id := lowest_id + 1;
            END IF;
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE w4(changes bigint) LANGUAGE sql AS $$
    INSERT INTO bench_narrow
    SELECT 10000000 + g, g % 1000, 'value-' || lpad((g % 1000000)::text, 14, '0'),
           '2026-01-01'::timestamptz + g * interval '1.001 second', (g % 10000000) / 100.0
    FROM generate_series(1, changes) g;
$$;
