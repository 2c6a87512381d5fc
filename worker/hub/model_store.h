#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/hub/http.h"
#include "common/hub/hub.h"
#include "common/hub/model_name.h"
#include "worker/hub/model_pull.h"

namespace sft::worker {

// How a worker gets models from a hub.
struct HubSetup {
  // The hub cache that this worker fills and clears; empty: it downloads nothing.
  std::string cache_dir;
  int64_t cache_limit = 0;  // bytes; 0: as many as the disk has
  std::string endpoint = hub::kDefaultEndpoint;
  std::string token;  // where a job's project has none; empty: none
  std::string ca_file;
  bool offline = false;  // nothing is asked of the hub
  // Whether models go to make room for others. Only a program that knows what jobs use may do so.
  bool makes_room = true;
};

// A node's model cache: downloads a model once however many jobs ask for it, and makes room by
// removing those that were not used for longest. It removes only what it downloaded itself.
// Thread-safe.
class ModelStore {
 public:
  // A model that is on its way, or whose last download or removal failed.
  struct Download {
    hub::ModelName name;
    PullProgress progress;
    double bytes_per_second = 0;
    std::string text;     // "downloading model Qwen/Qwen3-8B: 41 % of 16.4 GB, 1.20 GB/s, 8 s left"
    std::string problem;  // why the last one failed; empty: it runs
  };
  // What runs here now and so may not be removed: ids ("org/name").
  using InUse = std::function<std::set<std::string>()>;
  struct Reserve {
    // Bytes of the disk that stay free.
    std::function<int64_t()> keep_free = [] { return int64_t{0}; };
    // Where the environment says how to reach the hub.
    std::function<std::string(const std::string&)> environment;
  };

  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(HubSetup setup, Reserve reserve,
                                                          Clock& clock);
  // With another way to the hub.
  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(HubSetup setup, Reserve reserve,
                                                          std::unique_ptr<hub::HttpClient> http,
                                                          Clock& clock);

  // Whether it downloads models at all.
  bool Downloads() const { return !setup_.cache_dir.empty() && !setup_.offline; }
  const HubSetup& setup() const { return setup_; }
  // Must be called before the first Fetch, where models can be in use.
  void SetInUse(InUse in_use);
  // Makes what was downloaded readable for others; called with a model's folder, if this worker
  // made it.
  void SetPublish(std::function<absl::Status(const std::string&)> publish);

  // Other nodes that have models; borrowed. Must be called before the first Fetch.
  void SetPeers(ModelPeers* peers);

  // Called without a lock when a model has come or gone.
  void SetOnChange(std::function<void()> on_change);

  // Brings the model here, and says how far that is by `on_text`, which is called about once a
  // second. FAILED_PRECONDITION where this worker downloads nothing, and the errors of PullModel;
  // RESOURCE_EXHAUSTED when it does not fit. A download that another caller began is waited for.
  // `token`: empty: the setup's. `verify`: the model is here and broken: all of it is read once
  // more, and what is damaged comes again.
  absl::StatusOr<PulledModel> Fetch(const hub::ModelName& name, const std::string& token,
                                    const hub::StopCheck& stop,
                                    const std::function<void(const std::string&)>& on_text,
                                    bool verify = false);
  // Notes that a job uses the model now, if it is one of this cache.
  void MarkUsed(const std::string& id) const;
  // Removes a model that was downloaded here, all revisions. NOT_FOUND when there is none;
  // FAILED_PRECONDITION while it is in use or on its way.
  absl::Status Remove(const std::string& id);
  std::vector<Download> List() const;

 private:
  struct Running {
    Download download;
    MonoTime began{}, told{};
    int64_t bytes_at_begin = -1;
    int64_t needed = 0;  // bytes that it still takes of the disk
    bool done = false;
  };

  ModelStore(HubSetup setup, Reserve reserve)
      : setup_(std::move(setup)), reserve_(std::move(reserve)) {}

  // True when nobody else downloads the model: now this caller does. Waits a little where not.
  bool Claim(const hub::ModelName& name);
  std::string TextOfOther(const hub::ModelName& name) const;
  std::set<std::string> UsedNow() const;
  void TellChange() const;
  void NoteFailure(Download download, const absl::Status& why) SFT_REQUIRES(mutex_);
  absl::Status TryRemove(const std::string& id);
  bool IsRunning(const std::string& id) const SFT_REQUIRES(mutex_);
  // Removes a model's folder as one step. FAILED_PRECONDITION while it is in use or on its way.
  absl::Status RemoveFolder(const std::string& id) SFT_REQUIRES(room_);
  absl::StatusOr<PulledModel> Pull(const hub::ModelName& name, const std::string& token,
                                   const hub::StopCheck& stop,
                                   const std::function<void(const std::string&)>& on_text,
                                   bool verify);
  void Note(const std::string& key, const PullProgress& progress,
            const std::function<void(const std::string&)>& on_text);
  // Removes models until `bytes` more fit.
  absl::Status MakeRoom(const std::string& key, const std::string& id, int64_t bytes);
  // Models of this cache by their last use, the oldest first.
  std::vector<std::string> Oldest() const;

  const HubSetup setup_;
  const Reserve reserve_;
  // Set by Open, and not changed afterwards. `http_` null: nothing is downloaded.
  std::unique_ptr<hub::HttpClient> http_;
  Clock* clock_ = nullptr;
  mutable Mutex mutex_;
  CondVar changed_;
  InUse in_use_ SFT_GUARDED_BY(mutex_);
  std::function<absl::Status(const std::string&)> publish_ SFT_GUARDED_BY(mutex_);
  std::function<void()> on_change_ SFT_GUARDED_BY(mutex_);
  ModelPeers* peers_ SFT_GUARDED_BY(mutex_) = nullptr;
  std::map<std::string, Running> running_ SFT_GUARDED_BY(mutex_);  // by "org/name@revision"
  std::map<std::string, Download> failed_ SFT_GUARDED_BY(mutex_);
  Mutex room_;  // one caller makes room at a time
};

}  // namespace sft::worker
