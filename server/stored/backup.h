#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/store/store.h"
#include "sft/v1/admin_service.pb.h"

namespace sft::server {

// Backups of the server's state: the database and the files beside it, laid out as in a data
// folder.
//
//   <folder>/server.db       one file, checked
//   <folder>/manifest.json   version, schema, size and hash of server.db; hash and size of each
//                            blob; what was left out
//   <folder>/checkpoints/    the blobs of the checkpoints that server.db names
//   <folder>/logs/, metrics/ as they were a moment after the database, unless left out by request
//   <folder>/blobs/          data sets and adapters, by request
//   <folder>/tls/            the fleet's keys, by request
//
// For a standby (BackupRequest::listed) there are the first two alone, and the manifest names all
// logs and curves too, with sizes and times.
//
// Blobs never change and are listed after the database was copied, so every blob that the copy
// names is listed. They can be copied by any tool, before or after. Those that are put into the
// folder are hard-linked where possible, else copied.
class Backups {
 public:
  // Pages copied at once, 4 KiB each: other work waits for the database meanwhile.
  static constexpr int kPagesAtOnce = 64;

  // Removes what calls for a standby left behind that a server's end broke off.
  Backups(Store& store, Clock& clock, std::string data_dir);

  // Returns false when the caller no longer wants the backup.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  // Makes the folder `to` of the request; empty means a new one below the data folder. Only its
  // owner may read it.
  // ALREADY_EXISTS when it exists, ABORTED while another call makes it; on failure nothing of it
  // stays.
  absl::StatusOr<v1::BackupResult> Make(const v1::BackupRequest& request, const Progress& progress);

  // Returns false when the reader is gone.
  using Piece = std::function<bool(const v1::ReadFileResponse& piece)>;
  // Passes on the bytes of a file that a listed backup names. As AdminService.ReadFile.
  absl::Status ReadFile(const v1::ReadFileRequest& request, const Piece& sink);

 private:
  using Wanted = std::function<bool()>;
  // Puts the checkpoints that the copied database names into `folder`, unless `listed`, and returns
  // the list of them. A checkpoint superseded since the copy is left out.
  absl::StatusOr<nlohmann::json> TakeCheckpoints(const std::string& folder, bool listed,
                                                 const Wanted& wanted, v1::BackupResult& result);
  // Puts the files that the request asks for into `folder`, and notes those it does not.
  absl::Status TakeFiles(const v1::BackupRequest& request, const std::string& folder,
                         const nlohmann::json& blobs, const Wanted& wanted,
                         v1::BackupResult& result);
  absl::Status CopyDatabase(const std::string& path, const Progress& progress,
                            v1::BackupResult& result);
  absl::Status Fill(const v1::BackupRequest& request, const std::string& folder,
                    const Progress& progress, v1::BackupResult& result);
  absl::Status MakeFolder(const v1::BackupRequest& request, const std::string& folder,
                          const Progress& progress, v1::BackupResult& result);

  Store& store_;
  Clock& clock_;
  const std::string data_dir_;
  Mutex mutex_;
  std::set<std::string> making_ SFT_GUARDED_BY(mutex_);  // folders being made
};

}  // namespace sft::server
