-- Tables of the copy's benchmark, made on the server; :rows is how many rows.
-- "trips": 19 columns like those of New York's taxi trips.
CREATE TABLE trips AS
SELECT (1 + g % 2)::int4 AS vendor_id,
       timestamp '2024-01-01' + g * interval '1.7 seconds' AS pickup_at,
       timestamp '2024-01-01' + (g * 1.7 + g % 3600) * interval '1 second' AS dropoff_at,
       (g % 6)::int8 AS passenger_count,
       (g % 1999) / 100.0::float8 AS trip_distance,
       (1 + g % 5)::int8 AS rate_code_id,
       CASE WHEN g % 100 = 0 THEN 'Y' ELSE 'N' END AS store_and_forward,
       (g % 265)::int4 AS pickup_location_id,
       (g * 7 % 265)::int4 AS dropoff_location_id,
       (1 + g % 4)::int8 AS payment_type,
       (g % 4999) / 100.0::float8 AS fare_amount,
       (g % 3) * 0.5::float8 AS extra,
       0.5::float8 AS mta_tax,
       (g % 997) / 100.0::float8 AS tip_amount,
       (g % 13)::float8 AS tolls_amount,
       1::float8 AS improvement_surcharge,
       (g % 7993) / 100.0::float8 AS total_amount,
       2.5::float8 AS congestion_surcharge,
       CASE WHEN g % 9 = 0 THEN 1.25 END::float8 AS airport_fee
  FROM generate_series(1, :rows::int8) g;

-- "mixed": what does not travel in binary, and values of 2 kB that are stored out of line.
CREATE TABLE mixed (id int8, name text, amount numeric(12,2), ratio numeric, document jsonb,
                    created_at timestamptz, numbers int4[], words text[], content text STORAGE EXTERNAL);
INSERT INTO mixed
SELECT g, md5(g::text) || ' and some text', (g % 10000000) / 100.0, g / 7.0,
       jsonb_build_object('id', g, 'tags', ARRAY['a', 'b'], 'price', (g % 997) / 100.0),
       timestamptz '2024-01-01 00:00+00' + g * interval '1.3 seconds',
       ARRAY[g::int4 % 1000, 2, 3], ARRAY['x' || g, NULL, 'a "quoted" one'],
       repeat(md5(g::text), 64)
  FROM generate_series(1, :rows::int8 / 40) g;
