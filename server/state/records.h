#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/job_spec.h"
#include "server/state/gang.h"
#include "server/state/job_state.h"
#include "server/state/restart.h"
#include "server/state/schedule.h"
#include "server/state/verdict.h"

// Rows of the database as values. Times are microseconds since the Unix epoch, 0 for "not yet".

namespace sft::server {

// A file that a job key names: an uploaded blob, or a path on the nodes.
struct JobFileRecord {
  std::string key;
  std::string sha256;
  int64_t size = 0;
  std::string client_path;
  std::string node_path;
};

// What a key of a job came to, and from where.
struct ResolvedRecord {
  std::string key;
  std::string value;
  std::string origin;
};

// What was said of a key of a job that is taken all the same.
struct WarningRecord {
  std::string key;
  int line = 0;
  std::string message;
};

// A job; its attempts and events have rows of their own.
struct JobRecord {
  int64_t sequence = 0;  // order of submission
  std::string id;
  std::string project;
  std::string owner;
  int kind = 1;  // sft.v1.Job.Kind
  JobState state = JobState::kPending;
  std::string reason;
  std::string display_name;
  std::string variant;
  std::string gpu_type;
  int gpus_per_node = 1;
  int nodes = 1;
  std::string model;
  std::string source_text;
  std::string file_name;
  // The resolved job; read by store::ReadSpec, not with the row.
  std::optional<spec::JobSpec> spec;
  std::vector<ResolvedRecord> resolved_values;
  std::vector<WarningRecord> warnings;
  std::string request_id;    // empty: none
  std::string request_hash;  // of all that was sent, to tell a repeat from another job
  bool cancel_requested = false;
  std::string cancel_reason;
  bool cancel_checkpoint = false;  // one is written before the end
  int attempt = 0;
  Verdict verdict;
  RestartState restart;
  int64_t not_before_us = 0;  // of the next attempt
  std::string avoid_node;     // blamed for the last failure
  std::string resumed_from;   // id of the ended job that it continues
  int64_t resumed_step = 0;   // 0 with resumed_from: the newest that can be reached
  bool resume_changed = false;
  int protocol = 1;        // least that its workers have to speak (spec::NeedOf)
  std::string newer_keys;  // for whose sake
  int priority = 1;        // number of spec::Priority
  std::map<std::string, std::string> metadata;  // that its submitter has attached
  // The id of the webhook that is made for notify.webhook where there is none of its address; its
  // secret is kept already. Empty: there is one. Not with the row.
  std::string offered_hook;
  // Read by store::GetSchedule, not with the row.
  ScheduleRecord schedule;
  int64_t created_us = 0;
  int64_t started_us = 0;
  int64_t ended_us = 0;
};

// Figures of a step or a validation of preferences; job.proto says what they are.
struct PreferenceFigures {
  float rewards_chosen = 0, rewards_rejected = 0, rewards_accuracies = 0;
  float logps_chosen = 0, logps_rejected = 0, kl = 0;
};

// What an axis of the ranks' grid cost in a step (v1::AxisTraffic).
struct AxisTraffic {
  std::string axis;  // "shard"
  double exposed_share = 0;
  double gigabytes_per_second = 0;
};

// The last step that a rank has told of.
struct RankProgress {
  int rank = 0;
  int64_t step = 0;
  int64_t gpu_memory_bytes = 0;
};

// How far an attempt has come, as its rank 0 says.
struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  int64_t gpu_memory_bytes = 0;
  double eta_seconds = 0;
  double val_loss = 0;
  bool has_val_loss = false;
  std::string phase;  // "tokenise 120/150" while preparing
  double mfu = 0;
  int64_t trainable_parameters = 0;
  int64_t total_parameters = 0;
  double of_limit = 0;  // speed as part of what the GPU's measured rates allow; 0: not known
  std::optional<PreferenceFigures> preference;
  std::vector<std::pair<std::string, double>> values;  // of the last validation that has some
  std::vector<RankProgress> ranks;                     // as each says, by rank
  std::vector<AxisTraffic> traffic;
};

// One try of a job.
struct AttemptRecord {
  std::string uid;
  std::string job_id;
  int number = 1;
  int64_t epoch = 1;
  AttemptState state = AttemptState::kPlaced;
  std::string reason;
  std::string rendezvous;
  Verdict verdict;
  Progress progress;
  // The checkpoint it goes on from, by the attempt that wrote it; empty: it begins at step 0.
  std::string resume_uid;
  int64_t resume_step = 0;
  int64_t checkpoints_asked = 0;
  std::string checkpoint_request;  // id of the last call that asked
  // Not empty: told to stop by the scheduler; a verdict's code, and why.
  std::string stop_code, stop_reason;
  int64_t stop_us = 0;  // when
  // From which step on its pace is measured, and since when; 0: there are no steps yet.
  int64_t paced_step = 0, paced_us = 0;
  int64_t collecting = 0;  // step whose checkpoint all nodes shall deliver (CollectedStep); 0: none
  int64_t created_us = 0;
  int64_t ended_us = 0;
};

// One attempt on one node: what it was given and what it reports.
struct MemberRecord {
  std::string attempt_uid;
  Member status;
  int first_rank = 0;
  std::vector<int> slots;  // in rank order
  bool forgotten = false;  // the node has deleted what it had
  int protocol = 1;        // of the worker that was given it
};

// A GPU, or a share of the CPUs of a node.
struct SlotRecord {
  std::string node;
  int index = 0;
  std::string gpu_type;
  std::string product_name;
  std::string uuid;
  int64_t memory_bytes = 0;
  bool healthy = true;
  std::string health_reason;
  std::string job_id;  // that holds it; empty: free
};

// A base model that a node can see.
struct ModelRecord {
  std::string node;
  std::string id;
  std::string path;
  std::string config_json;
  int64_t bytes = 0;
  std::string hash;
  std::string problem;
};

// Stored: never renumber.
enum class NodeState : int { kUp = 1, kSuspect = 2 };

// A node as it registered last.
struct NodeRecord {
  std::string name;
  NodeState state = NodeState::kUp;
  std::string reason;
  std::string hostname;
  std::string address;
  std::string incarnation;
  std::string data_dir_id;  // of the worker's data folder; empty: it did not say
  std::string version;
  int protocol = 1;
  bool simulated = false;
  bool has_shared_folder = false;
  int cpus = 0;
  int64_t memory_bytes = 0;
  int64_t last_seen_us = 0;
  std::vector<SlotRecord> slots;
};

// A named allocation: TYPE-Nx.
struct VariantRecord {
  std::string name;
  std::string gpu_type;
  int gpus_per_node = 1;
};

// One line of the history of a job.
struct EventRecord {
  int64_t sequence = 0;  // from 1, in a job
  int64_t time_us = 0;
  std::string type;
  std::string message;
  int attempt = 0;
};

// An uploaded data set that passed its check.
struct DatasetRecord {
  std::string sha256;
  int64_t size = 0;
  int64_t rows = 0;
  std::string display_name;
  std::string owner;
  int64_t created_us = 0;
  // JSON objects in none of the row forms: a job refuses them or leaves them out, as it says.
  int64_t odd_rows = 0;
  int64_t first_odd_row = 0;  // counted from 1 in rows; 0: none
  std::string first_odd;      // "line 7: what is wrong"
  int check_version = 0;      // data::kCheckVersion when it was checked; 0: before there was one
  int protocol = 1;           // least that a worker has to speak to read the file
};

// A data set by an id and a name that its user gave.
struct FileRecord {
  int64_t sequence = 0;  // order in which they were made
  std::string id;
  std::string project;
  std::string owner;
  std::string sha256;
  int64_t size = 0, rows = 0;  // of the data set
  std::string name;
  std::string purpose;
  int64_t created_us = 0;
};

// One file of a delivery.
struct ArtifactFileRecord {
  std::string path;
  std::string sha256;
  int64_t size = 0;
};

// Where a node's part of a checkpoint is. Stored: never renumber.
enum class CheckpointPlace : int { kServer = 1, kNode = 2, kShared = 3 };

// A node's part of a checkpoint.
struct CheckpointPart {
  int node_rank = 0;
  std::string node;
  CheckpointPlace place = CheckpointPlace::kServer;
  std::string path;  // on the node, or below the shared folder
  int64_t bytes = 0;
};

// Training state from which a job can go on.
struct CheckpointRecord {
  std::string attempt_uid;  // that wrote it
  int64_t step = 0;
  std::string job_id;
  int attempt = 0;
  int64_t epoch = 0;
  std::string reason;
  std::optional<double> metric;
  bool best = false;
  int64_t bytes = 0;    // of the registered parts
  std::string problem;  // why it could not be resumed from; empty: nothing is known
  int64_t created_us = 0;
  int64_t committed_us = 0;
  int64_t deleted_us = 0;
  std::vector<CheckpointPart> parts;  // by node rank
};

// A failure that blames a node.
struct NodeFault {
  std::string node;
  int64_t time_us = 0;
  std::string job_id;
  std::string code;
  // How long its attempt lived (-1: nobody knows), and the last step that it finished.
  int64_t lived_us = -1;
  int64_t step = 0;
  bool early = false;  // soon after its placement and before the first step
};

// What an attempt delivered.
struct ArtifactRecord {
  std::string id;
  std::string job_id;
  std::string attempt_uid;
  std::string kind;
  std::string node;  // that keeps it; empty: the server's blobs
  std::string node_path;
  std::vector<ArtifactFileRecord> files;
  int64_t bytes = 0;
  int64_t created_us = 0;
};

}  // namespace sft::server
