#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/blob/blob_store.h"

namespace sft::server {

// The server that a standby copies, as it is asked.
class StandbySource {
 public:
  virtual ~StandbySource() = default;
  // Puts server.db and manifest.json of a listed backup (BackupRequest::listed) of now into the
  // folder, which exists.
  virtual absl::Status Fetch(const std::string& folder) = 0;
  // As AdminService.ReadFile; `sink` takes the pieces in order.
  using Sink = std::function<absl::Status(int64_t offset, const std::string& bytes)>;
  virtual absl::Status ReadFile(const std::string& path, int64_t offset,
                                const std::string& sha256_before, const Sink& sink) = 0;
};

// A copy of a server's data folder that is kept up to date from afar, until it takes the server's
// place. In the standby's data folder:
//
//   standby/<n>/server.db, manifest.json   the last copy of the database that is whole, with all
//                                          files that its manifest names
//   standby/<n>/copy.json                  of which server, and when its copy was begun
//   blobs/, checkpoints/, logs/, metrics/  as in a server's data folder
//
// While standby/ is there, no server starts on the folder. What is there stays usable at every
// moment: a round puts files beside it first, then the database, and only then removes what the
// server no longer has. The fleet's keys are not copied: tls/ comes by hand. Not thread-safe.
class StandbyCopy {
 public:
  // `of`: the server's address, for people. FAILED_PRECONDITION when the folder has a server's
  // database. The caller holds the folder's lock (DataDirLock).
  static absl::StatusOr<std::unique_ptr<StandbyCopy>> Open(const std::string& data_dir,
                                                           const std::string& of,
                                                           StandbySource& source, Clock& clock);

  // One copy. What the server had acknowledged before `begun` is in it.
  struct Round {
    WallTime begun{};
    Nanos took{0};
    int64_t database_bytes = 0;
    int64_t files = 0, bytes = 0;  // that came
    int64_t damaged = 0;           // blobs that did not match their hash, and are left out
  };
  // Brings the copy up to date. On an error the last one stays.
  absl::StatusOr<Round> Ship();
  // When the last whole copy was begun; nullopt: there is none.
  std::optional<WallTime> begun() const { return begun_; }

 private:
  StandbyCopy(std::string data_dir, std::string of, StandbySource& source, Clock& clock)
      : data_dir_(std::move(data_dir)), of_(std::move(of)), source_(source), clock_(clock) {}
  absl::Status TakeBlobs(BlobStore& store, const std::string& folder, const nlohmann::json& blobs,
                         Round& round);
  absl::Status TakeBlob(BlobStore& store, const std::string& folder, const nlohmann::json& blob,
                        Round& round);
  // Logs and curves.
  absl::Status TakeGrowing(const nlohmann::json& files, const nlohmann::json& before, Round& round);
  absl::Status TakeGrown(const std::string& path, Round& round);
  absl::Status RemoveOthers(const nlohmann::json& manifest);

  const std::string data_dir_;
  const std::string of_;
  StandbySource& source_;
  Clock& clock_;
  std::optional<WallTime> begun_;
  int64_t number_ = 0;  // of the last whole copy
};

// True when the data folder is a standby's, which has not taken over.
bool IsStandby(const std::string& data_dir);
// The server that the data folder's standby has taken the place of; empty: none.
std::string TookOverFrom(const std::string& data_dir);

// Makes a data folder that of the fleet's server, of a new generation above `above`: a standby's
// from its last whole copy, any other as it is. Returns the text for the operator's terminal. A
// break, and a repeat, lose nothing. FAILED_PRECONDITION for a standby without a copy, NOT_FOUND
// for a folder without a database. The caller holds the folder's lock.
absl::StatusOr<std::string> TakeOverDataDir(const std::string& data_dir, Clock& clock,
                                            int64_t above);

}  // namespace sft::server
