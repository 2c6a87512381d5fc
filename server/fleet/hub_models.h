#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/hub/http.h"
#include "common/hub/hub.h"
#include "common/hub/model_name.h"

namespace sft::server {

// What the server asks a model hub: whether a model that no node has is there and may be read,
// which commit its name means, and its config.json. Nodes download by themselves. Thread-safe.
class HubModels {
 public:
  struct Options {
    std::string endpoint = hub::kDefaultEndpoint;
    std::string token;  // for projects that have none; empty: none
    std::string ca_file;
    bool offline = false;   // nothing is asked
    std::string token_dir;  // projects' tokens, a file each
  };
  struct Found {
    std::string commit;
    std::string config_json;
  };
  HubModels(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  bool offline() const { return options_.offline; }
  const std::string& endpoint() const { return options_.endpoint; }
  // Asks with the token of the project. The errors of hub::Hub, whose UNAVAILABLE says nothing of
  // the model; it comes within some seconds.
  absl::StatusOr<Found> Ask(const hub::ModelName& name, const std::string& project);
  // config.json of a model at a commit that was asked for lately; nothing: it was not.
  std::optional<std::string> ConfigOf(const hub::ModelName& name) const;

  // The token with which nodes download for the project; empty: none. Kept in files beside the
  // database, and so in no backup.
  absl::StatusOr<std::string> TokenOf(const std::string& project) const;
  bool HasToken(const std::string& project) const;
  // An empty token removes it. INVALID_ARGUMENT for what cannot be one, also from CheckToken, which
  // sets nothing; the message does not hold it.
  absl::Status CheckToken(const std::string& token) const;
  absl::Status SetToken(const std::string& project, const std::string& token);

 private:
  absl::StatusOr<hub::HttpClient*> Client();

  const Options options_;
  Clock& clock_;
  mutable Mutex mutex_;
  std::unique_ptr<hub::HttpClient> http_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, std::string> configs_ SFT_GUARDED_BY(mutex_);  // by "org/name@commit"
};

}  // namespace sft::server
