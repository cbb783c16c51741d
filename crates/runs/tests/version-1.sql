-- A store of layout 1, as nearfar 0.1.0 writes it, with one run of two samples. Never change this file.
PRAGMA application_id = 0x6e666172;
PRAGMA user_version = 1;
CREATE TABLE machine (
    id INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,
    json_zlib BLOB NOT NULL
) STRICT;
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    experiment TEXT NOT NULL,
    title TEXT NOT NULL,
    label TEXT,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'interrupted', 'failed')),
    failure TEXT,
    started_at_s REAL NOT NULL,
    finished_at_s REAL,
    samples INTEGER NOT NULL DEFAULT 0,
    doubtful INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cells INTEGER NOT NULL,
    samples_per_cell INTEGER NOT NULL,
    host TEXT NOT NULL,
    kernel TEXT NOT NULL,
    emulated TEXT,
    nearfar TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_ticks INTEGER NOT NULL,
    boot TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    machine INTEGER NOT NULL REFERENCES machine (id)
) STRICT;
CREATE INDEX run_by_machine ON run (machine);
CREATE INDEX run_by_experiment ON run (experiment);
CREATE TABLE detail (
    run INTEGER PRIMARY KEY REFERENCES run (id) ON DELETE CASCADE,
    parameters TEXT NOT NULL,
    factors TEXT NOT NULL,
    plan TEXT NOT NULL,
    seed INTEGER NOT NULL,
    warnings TEXT NOT NULL,
    kernel_version TEXT NOT NULL,
    kernel_command_line TEXT NOT NULL
) STRICT;
CREATE TABLE sample (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    round INTEGER NOT NULL,
    cell TEXT NOT NULL,
    started_at_s REAL NOT NULL,
    took_s REAL NOT NULL,
    seconds REAL,
    failed TEXT,
    doubts TEXT NOT NULL,
    sample TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;
INSERT INTO machine VALUES (1, x'a6c6b713f592585456f08d17ce4d01fac38110baa3181ba0ba392731bee29dd0',
    x'78dabd563d8fdc2010fd2b88da27d9a7288553a6489b26551421168f6d643c5803acb5b7baff9ec13e5f8acb26ca296c63f1e1376f1ef30157e9c90e16657b9593c54eb6325c308e10ad91955c9c36c06be83b681f85f1046d2396d436bc390121b88c441fd5847e457502a353c810b621824f6440741e82e07f4404e7e473253599d146303111bc07bf90ef9289ff0e656c961264fbfd2a2dabad2be9d1596458a40495344be25d59b3be19664f973f921c472542248b8318ec79e3133bf693d05df7326e3f7ef8921dd8799b1bbc4d29de1f7c6a3e047b72a05e8ee0f7f6f55beba30e82bdbd880d5889cf5fbff1d76833e6d94e233476a2b3216a346c9c0ffad7e45d4a5ee1bb9863da3675f55867fbbda579d504eaaf44ff4dd21ea45ba9934d6dcbb94cb6c15e212acfd506b919fe1ddb1cd8e62db6c921640714fb1377ad47408beb3e7c95f5434e501bbc631fbae2bce8c727d527e78a3369e7fc5a5c514ea1ed074ea25c90c6161736fa10d5896c37dca13e2c46204a4b2c4f8510574fd31d88ce73f9028b3a4cf7695f7087d8304964f44e9466ad4edaf1262f95bf74a0d7c945f59a894af7bd451b2fc5a9077fe696eda97cb290c6b0f0cd87518d6900b5e8f2c5cdbc2bf19b8deef170d00372dbb266eb93cf3f01cc32cc47');
INSERT INTO run VALUES (3, '0123456789abcdef0123456789abcdef', 'probe', 'the probe under load', 'quiet', 'running',
    NULL, 1795225560.25, NULL, 2, 1, 0, 2, 4, 'numa-server', '6.12.0-1-amd64', NULL, '0.1.0', 'f00d', 4711, 123456,
    'b0071d00-0000-0000-0000-000000000000', 'pid:[4026531836]', 1);
INSERT INTO detail VALUES (3, '{"counts":10,"load":60.5}',
    '[{"name":"memory","levels":[0,"floating"]},{"name":"balancing","levels":[false]}]',
    '[{"balancing":false,"memory":0},{"balancing":false,"memory":"floating"}]', -1, '["the governor saves power"]',
    '#1 SMP PREEMPT_DYNAMIC Debian 6.12.9-1', 'root=/dev/sda1 ro');
INSERT INTO sample VALUES (3, 1, 1, '{"balancing":false,"memory":0}', 1795225561.5, 2.25, 2.0, NULL, '[]',
    '{"faults":{"minor":0}}');
INSERT INTO sample VALUES (3, 2, 1, '{"balancing":false,"memory":"floating"}', 1795225564.0, 2.5, 2.5, NULL,
    '["a page fault in the timed part"]', '{"faults":{"minor":1}}');
