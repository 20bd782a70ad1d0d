BEGIN TRANSACTION;
CREATE TABLE aiak_tune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT aiak_tune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "aiak_tune_version" VALUES('0001');
CREATE TABLE confirmation_runs (
	tuning_id TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (tuning_id, position), 
	FOREIGN KEY(tuning_id) REFERENCES tunings (id) ON DELETE CASCADE
);
INSERT INTO "confirmation_runs" VALUES('01JE5Q3X7N0000000000000001',0,'{"pair":0,"side":"baseline","settings":{},"samples_per_s":1049.2,"step_ms":61.0,"duration_s":20.5,"startup_s":null,"memory_bytes":null,"work":{"losses":[2.3,2.2],"updates":20,"moved":true},"problem":null}');
INSERT INTO "confirmation_runs" VALUES('01JE5Q3X7N0000000000000001',1,'{"pair":1,"side":"baseline","settings":{},"samples_per_s":1049.2,"step_ms":61.0,"duration_s":20.5,"startup_s":null,"memory_bytes":null,"work":{"losses":[2.3,2.2],"updates":20,"moved":true},"problem":null}');
CREATE TABLE trials (
	tuning_id TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason_code TEXT, 
	samples_per_s FLOAT, 
	document TEXT NOT NULL, 
	PRIMARY KEY (tuning_id, position), 
	FOREIGN KEY(tuning_id) REFERENCES tunings (id) ON DELETE CASCADE
);
INSERT INTO "trials" VALUES('01JE5Q3X7N0000000000000001',0,'measured',NULL,1049.2,'{"number":0,"settings":{},"state":"measured","reason_code":null,"reason":null,"samples_per_s":1049.2,"step_ms":61.0,"breakdown_ms":{"data_wait":31.2,"h2d":0.9,"compute":22.4,"comm":0.0,"gap":6.1,"host":0.4},"memory_bytes":9126805504,"duration_s":21.0,"startup_s":null,"effects":{}}');
INSERT INTO "trials" VALUES('01JE5Q3X7N0000000000000001',1,'failed','non_finite_loss',NULL,'{"number":1,"settings":{"amp":{"dtype":"float16"}},"state":"failed","reason_code":"non_finite_loss","reason":"the loss was inf at step 4","samples_per_s":null,"step_ms":null,"breakdown_ms":null,"memory_bytes":null,"duration_s":17.2,"log_tail":null}');
INSERT INTO "trials" VALUES('01JE5Q3X7N0000000000000001',2,'pruned','clearly_slower',890.1,'{"number":2,"settings":{"compile":{"mode":"default"}},"state":"pruned","reason_code":"clearly_slower","reason":"after 12 steps 18% slower than the best so far, beyond doubt","samples_per_s":890.1,"step_ms":71.9,"breakdown_ms":null,"memory_bytes":null,"duration_s":33.0}');
INSERT INTO "trials" VALUES('01JE5Q3X7N0000000000000001',3,'measured',NULL,2077.9,'{"number":3,"settings":{"data-workers":{"num_workers":8,"pin_memory":true,"persistent_workers":true,"prefetch_factor":4}},"state":"measured","reason_code":null,"reason":null,"samples_per_s":2077.9,"step_ms":30.8,"breakdown_ms":{"data_wait":1.0,"h2d":0.9,"compute":22.4,"comm":0.0,"gap":6.1,"host":0.4},"memory_bytes":9126805504,"duration_s":22.4,"startup_s":null,"effects":{}}');
INSERT INTO "trials" VALUES('01JE5Q3X7N0000000000000001',4,'measured',NULL,4848.5,'{"number":4,"settings":{"data-workers":{"num_workers":8,"pin_memory":true,"persistent_workers":true,"prefetch_factor":4},"amp":{"dtype":"bfloat16"},"cuda-graphs":{"compile":true}},"state":"measured","reason_code":null,"reason":null,"samples_per_s":4848.5,"step_ms":13.2,"breakdown_ms":{"data_wait":2.6,"h2d":0.9,"compute":8.6,"comm":0.0,"gap":0.7,"host":0.4},"memory_bytes":14173392896,"duration_s":71.0,"startup_s":null,"effects":{}}');
CREATE TABLE tunings (
	id TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	job_fingerprint TEXT NOT NULL, 
	model_fingerprint TEXT, 
	name TEXT NOT NULL, 
	verdict TEXT NOT NULL, 
	speedup FLOAT, 
	gpu TEXT, 
	torch TEXT, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "tunings" VALUES('01JE5Q3X7N0000000000000001','2026-12-01 15:04:05.000000','job1:5f2c9a0d6b1e47c8a3f0925d7e4b8c61','model1:91be07c3f2a85d64e0b7193c8f5a2d40','train.py','faster',4.61,'NVIDIA H200','2.11.0+cu130','{"schema":1,"kind":"tuning","id":"01JE5Q3X7N0000000000000001","created_at":"2026-12-01T15:04:05Z","job":{"fingerprint":"job1:5f2c9a0d6b1e47c8a3f0925d7e4b8c61","command":["python","train.py","--lr","0.1"],"name":"train.py","model_fingerprint":"model1:91be07c3f2a85d64e0b7193c8f5a2d40","model":{"class":"ResNet","parameters":25557032,"parameter_tensors":161,"trainable_parameters":0,"devices":[]},"optimizer":"AdamW","optimizer_facts":null,"batch_shapes":[[64,3,224,224],[64]],"dtype":"float32","loader":{"class":"DataLoader","num_workers":0,"pin_memory":false,"persistent_workers":false,"prefetch_factor":null,"map_style":true,"batch_bytes":null,"batches_per_epoch":null,"start_method":null,"on_device":false,"obstacles":[]},"ddp":false,"amp":false,"grad_scaler":false,"compiled":false,"seeded":true},"environment":{"gpu":"NVIDIA H200","gpu_count":1,"compute_capability":[9,0],"gpu_memory_bytes":150754820096,"driver":"580.159.04","cuda":"13.0","nccl":"2.28.9","torch":"2.11.0+cu130","python":"3.12.3","cpu":"AMD EPYC 9654","cores":16,"ram_bytes":137438953472,"nodes":1,"ranks_per_node":1,"link":null,"storage":"nvme","shm_free_bytes":null,"bf16_fast":null},"numerics_limit":"changing","verdict":"faster","verdict_reason":null,"finished_at":"2026-12-01T15:10:41Z","duration_s":396.0,"smallest_visible_gain":null,"baseline":{"samples_per_s":1049.2,"ci95":[1031.0,1067.5],"step_ms":61.0,"runs":3},"best":{"settings":{"data-workers":{"num_workers":8,"pin_memory":true,"persistent_workers":true,"prefetch_factor":4},"amp":{"dtype":"bfloat16"},"cuda-graphs":{"compile":true}},"speedup":4.61,"ci95":[4.52,4.7],"samples_per_s":4836.8,"step_ms":13.2,"numerics":"changing","parity":{"passed":true,"metric":"mean |loss - baseline| over steps 5-30","delta":0.004,"band":0.019,"steps":26,"baseline_runs":3,"seeds":2,"reason":null},"startup_added_s":48.0,"break_even_steps":1005,"memory_bytes":14173392896},"best_lossless":{"settings":{"data-workers":{"num_workers":8,"pin_memory":true,"persistent_workers":true,"prefetch_factor":4}},"speedup":1.98,"ci95":[1.94,2.02],"samples_per_s":2077.4,"step_ms":30.8,"numerics":"lossless","parity":{"passed":true,"metric":"mean |loss - baseline| over steps 5-30","delta":0.004,"band":0.019,"steps":26,"baseline_runs":3,"seeds":2,"reason":null},"startup_added_s":1.0,"break_even_steps":34,"memory_bytes":9126805504},"profile":{"schema":1,"kind":"profile","job":{"fingerprint":"job1:5f2c9a0d6b1e47c8a3f0925d7e4b8c61","command":["python","train.py","--lr","0.1"],"name":"train.py","model_fingerprint":"model1:91be07c3f2a85d64e0b7193c8f5a2d40","model":{"class":"ResNet","parameters":25557032,"parameter_tensors":161,"trainable_parameters":0,"devices":[]},"optimizer":"AdamW","optimizer_facts":null,"batch_shapes":[[64,3,224,224],[64]],"dtype":"float32","loader":{"class":"DataLoader","num_workers":0,"pin_memory":false,"persistent_workers":false,"prefetch_factor":null,"map_style":true,"batch_bytes":null,"batches_per_epoch":null,"start_method":null,"on_device":false,"obstacles":[]},"ddp":false,"amp":false,"grad_scaler":false,"compiled":false,"seeded":true},"environment":{"gpu":"NVIDIA H200","gpu_count":1,"compute_capability":[9,0],"gpu_memory_bytes":150754820096,"driver":"580.159.04","cuda":"13.0","nccl":"2.28.9","torch":"2.11.0+cu130","python":"3.12.3","cpu":"AMD EPYC 9654","cores":16,"ram_bytes":137438953472,"nodes":1,"ranks_per_node":1,"link":null,"storage":"nvme","shm_free_bytes":null,"bf16_fast":null},"steps":{"counted":20,"warmup":10,"profiled":6,"step_ms":{"mean":61.0,"median":60.7,"p05":58.9,"p95":64.2},"samples_per_step":64.0,"samples_per_s":1049.2,"profiler_inflation":1.21},"breakdown_ms":{"data_wait":31.2,"h2d":0.9,"compute":22.4,"comm":0.0,"gap":6.1,"host":0.4},"detail_ms":{"data_io":3.1,"data_cpu":28.1,"h2d_overlapped":0.0,"comm_overlapped":0.0,"comm_waiting":0.0,"gap_sync":1.2},"ranks":[{"rank":0,"step_ms":61.0,"breakdown_ms":{"data_wait":31.2,"h2d":0.9,"compute":22.4,"comm":0.0,"gap":6.1,"host":0.4}}],"matmul_share":null,"fp32_matmul_share":0.11,"memory_bytes":null,"findings":[{"optimization":"data-workers","fits":true,"reason":"51% of the step waits for batches made in the main process; 14 cores are idle","bound":2.05},{"optimization":"ddp-buckets","fits":false,"reason":"one rank: nothing is communicated","bound":null}],"warnings":[{"code":"profiler_inflation","text":"profiled steps were 21% slower than clean ones; only device-busy times are taken from them, unscaled"}]},"warnings":[]}');
CREATE INDEX ix_tunings_created_at ON tunings (created_at, id);
CREATE INDEX ix_tunings_job_fingerprint ON tunings (job_fingerprint, created_at);
CREATE INDEX ix_tunings_model_fingerprint ON tunings (model_fingerprint, created_at);
COMMIT;
