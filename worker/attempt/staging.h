#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"
#include "worker/channel/launch.h"
#include "worker/hub/model_store.h"
#include "worker/node/data_cleaning.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Everything a job names, as paths on this node.
struct StagedJob {
  std::string model_dir;
  std::string train_file;
  std::string val_file;  // empty: none
  // What the submitter calls them; empty: no other name.
  std::string train_name;
  std::string val_name;
  // How files of this node looked (channel::RankLaunch); empty: fetched ones.
  std::string train_stamp;
  std::string val_stamp;
  // The adapter that answers: a folder of this node, or files by their names in one.
  std::string adapter_dir;
  std::map<std::string, std::string> adapter_files;
  std::vector<channel::RowFile> more_train_files;
  std::string resume_dir;  // all files of the checkpoint to go on from; empty: step 0
};

// What the download of a model asks and tells.
struct ModelAsk {
  // The token of the job's project; called only where something is downloaded.
  std::function<absl::StatusOr<std::string>()> token;
  // How far it is, about once a second.
  std::function<void(const std::string&)> on_text;
  // For the job's history: what came.
  std::function<void(const std::string&)> on_event;
};

// Brings what an attempt needs to this node, and removes what none has needed for long.
// Thread-safe: attempts that need one blob at the same time download it once, those that need
// others do not wait.
class Stager {
 public:
  // All are borrowed. `models`: where models are downloaded to; null: none are.
  Stager(const NodeSetup& setup, ServerApi& server, ModelStore* models = nullptr)
      : setup_(setup), server_(server), models_(models) {}

  // Who has lost or spoilt a thing is to blame for it. INVALID_ARGUMENT, NOT_FOUND and
  // PERMISSION_DENIED are the job owner's to correct; ABORTED when `stop` said so; DATA_LOSS when
  // the checkpoint is gone or damaged; FAILED_PRECONDITION when the server has lost a data set;
  // UNAVAILABLE and DEADLINE_EXCEEDED may pass (IsPassing), and a download that broke is kept and
  // continued by the next call; anything else is the node's.
  // `model` is the job's (job.model).
  absl::StatusOr<StagedJob> Stage(const v1::Dispatch& dispatch, const std::string& model,
                                  const StopCheck& stop, const ModelAsk& ask = {});

  // Removes data sets and prepared ones (CleanData). `in_use` is asked while nothing is staged
  // anew.
  absl::Status Clean(const std::function<DataInUse()>& in_use, WallTime now);

 private:
  // The model's folder, downloaded first where this node lacks it and may.
  absl::StatusOr<std::string> StageModel(const std::string& model, const StopCheck& stop,
                                         const ModelAsk& ask);
  // Waits until nobody else fetches the blob; then this caller does, until Release. ABORTED when
  // `stop` said so.
  absl::Status Claim(const std::string& sha256, const StopCheck& stop);
  void Release(const std::string& sha256);
  struct StagedFile {
    std::string path;
    // As it looked when it was opened; empty: it was fetched, and nobody but the worker writes it.
    std::string stamp;
  };
  // A folder of the node's that holds an adapter.
  absl::StatusOr<std::string> StageFolder(const v1::JobFileRef& file, const v1::Dispatch& dispatch);
  absl::StatusOr<StagedFile> StageFile(const v1::JobFileRef& file, const v1::Dispatch& dispatch,
                                       const StopCheck& stop);
  // Where the blob's file is, which ranks may read.
  absl::StatusOr<std::string> FetchBlob(const v1::JobFileRef& file, const StopCheck& stop);
  // Of a fetch: bytes that arrived broken may arrive whole next time, but not for ever.
  absl::Status Judge(const std::string& what, const absl::Status& fetched);

  const NodeSetup& setup_;
  ServerApi& server_;
  ModelStore* const models_;
  Mutex mutex_;
  CondVar released_;
  std::set<std::string> claimed_ SFT_GUARDED_BY(mutex_);  // blobs that are fetched now
  // How often in a row each blob or checkpoint has arrived broken.
  std::map<std::string, int> broken_ SFT_GUARDED_BY(mutex_);
};

// A failure of staging that may be gone at the next try.
bool IsPassing(const absl::Status& status);

}  // namespace sft::worker
