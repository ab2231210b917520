-- The tables, the publication and the procedures of the workloads W1 to W8.
--
--   W1  CALL w1(2000, 1)                    2 M narrow changes, 60/30/10 % insert/update/delete, in
--                                           transactions of 1000: what an OLTP table looks like
--   W2  CALL w2(400, 1)                     400 k changes of 30 mixed columns: what the casts cost
--   W3  pgbench -n -c 4 -j 1 -t 50000       200 k transactions of 4 changes over 4 tables that take
--                                           turns: what small transactions and many relations cost
--   W4  CALL w4(1000000)                    one transaction of 1 M inserts: what spilling costs
--   W5  CALL w5(400, 500)                   400 tables of 3 columns that get 500 inserts each: each
--                                           transaction inserts one row into every table
--   W6  CALL w6(300, 1)                     300 k changes of 12 columns with REPLICA IDENTITY FULL:
--                                           each update and delete sends the old row, too
--   W7  CALL w7(200)                        200 k updates of rows with a text of 4 kB that does not
--                                           change, so that the server leaves it out
--   W8  CALL w8(300, 1)                     300 k changes of jsonb, numeric, arrays, timestamptz and
--                                           text: what the types cost that are not plain numbers
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

CREATE TABLE bench_full (
    id bigint PRIMARY KEY, i4 int, i8 bigint, t1 text, t2 text, n1 numeric(12,2), ts timestamptz,
    dt date, b1 bool, f8 float8, u1 uuid, nl text
);
ALTER TABLE bench_full REPLICA IDENTITY FULL;

CREATE TABLE bench_toast (id bigint PRIMARY KEY, a int, content text);
-- Without compression a text of 4 kB always goes into the TOAST table.
ALTER TABLE bench_toast ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE TABLE bench_mixed (
    id bigint PRIMARY KEY, document jsonb, price numeric(12,2), exact numeric, numbers int[],
    words text[], changed_at timestamptz, note text
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

CREATE PROCEDURE w5_create(tables int) LANGUAGE plpgsql AS $$
BEGIN
    FOR t IN 1..tables LOOP
        EXECUTE format('CREATE TABLE bench_many_%s (id bigint PRIMARY KEY, a int, b text)', t);
    END LOOP;
END $$;

-- Each table is dropped in a transaction of its own: one transaction would hold too many locks.
CREATE PROCEDURE w5_drop(tables int) LANGUAGE plpgsql AS $$
BEGIN
    FOR t IN 1..tables LOOP
        EXECUTE format('DROP TABLE bench_many_%s', t);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE w5(tables int, transactions int) LANGUAGE plpgsql AS $$
BEGIN
    FOR k IN 1..transactions LOOP
        FOR t IN 1..tables LOOP
            EXECUTE format('INSERT INTO bench_many_%s VALUES ($1, $2, $3)', t)
                USING k::bigint, (k * 7919 + t) % 1000003, 'value-' || lpad(k::text, 14, '0');
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

-- 40/40/20 % insert/update/delete.
CREATE PROCEDURE w6(transactions int, base bigint) LANGUAGE plpgsql AS $$
DECLARE
    next_id bigint := base;
    lowest_id bigint := base;
    target_id bigint;
BEGIN
    FOR t IN 1..transactions LOOP
        FOR k IN 0..999 LOOP
            IF k % 10 < 4 THEN
                INSERT INTO bench_full VALUES (
                    next_id, (next_id * 7919) % 1000003, next_id * 1000003,
                    'text-' || md5(next_id::text), repeat('lorem ipsum ', 3) || next_id,
                    (next_id % 10000000) / 100.0,
                    '2026-01-01'::timestamptz + (next_id % 31536000) * interval '1 second',
                    '2020-01-01'::date + (next_id % 3000)::int, next_id % 2 = 0, next_id / 3.0,
                    md5(next_id::text)::uuid, NULL);
                next_id := next_id + 1;
            ELSIF k % 10 < 8 THEN
                target_id := lowest_id
                    + ((k::bigint * 7919 + t * 104729) % greatest(next_id - lowest_id - 1, 1));
                UPDATE bench_full SET i4 = i4 + 1, n1 = n1 + 1.01 WHERE id = target_id;
            ELSE
                DELETE FROM bench_full WHERE id = lowest_id;
                lowest_id := lowest_id + 1;
            END IF;
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE w7_fill() LANGUAGE sql AS $$
    INSERT INTO bench_toast
    SELECT g, 0, string_agg(md5((g * 128 + part)::text), '')
    FROM generate_series(1, 1000) g, generate_series(1, 128) part GROUP BY g;
$$;

CREATE PROCEDURE w7(transactions int) LANGUAGE plpgsql AS $$
BEGIN
    FOR t IN 1..transactions LOOP
        FOR k IN 1..1000 LOOP
            UPDATE bench_toast SET a = a + 1 WHERE id = 1 + (k * 7919 + t) % 1000;
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE w8(transactions int, base bigint) LANGUAGE plpgsql AS $$
DECLARE
    next_id bigint := base;
    lowest_id bigint := base;
    target_id bigint;
BEGIN
    FOR t IN 1..transactions LOOP
        FOR k IN 0..999 LOOP
            IF k % 10 < 6 THEN
                INSERT INTO bench_mixed VALUES (
                    next_id,
                    jsonb_build_object('k', next_id, 'name', 'n' || next_id,
                                       'tags', jsonb_build_array('a', 'b', next_id % 7)),
                    (next_id % 10000000) / 100.0, next_id / 7.0,
                    ARRAY[next_id % 10, 2, 3], ARRAY['x', 'y ' || next_id, NULL],
                    '2026-01-01'::timestamptz + (next_id % 31536000) * interval '1 second'
                        + (next_id % 1000000) * interval '1 microsecond',
                    'row "quoted", \back\ ' || next_id);
                next_id := next_id + 1;
            ELSIF k % 10 < 9 THEN
                target_id := lowest_id
                    + ((k::bigint * 7919 + t * 104729) % greatest(next_id - lowest_id - 1, 1));
                UPDATE bench_mixed
                    SET price = price + 1.01, changed_at = changed_at + interval '1 second',
                        document = document || '{"changed": true}'
                    WHERE id = target_id;
            ELSE
                DELETE FROM bench_mixed WHERE id = lowest_id;
                lowest_id := lowest_id + 1;
            END IF;
        END LOOP;
        COMMIT;
    END LOOP;
END $$;
