#pragma once

#include <functional>
#include <string>

#include "common/base/clock.h"
#include "server/store/store.h"
#include "sft/v1/admin_service.pb.h"

namespace sft::server {

// Copies of the server's state: the database, and a list of the files that lie beside it.
//
//   <folder>/server.db      one file, checked
//   <folder>/manifest.json  version, schema, size and hash of server.db; hash and size of each blob
//
// Blobs never change and are listed after the database was copied: whatever the copy names is among
// them. They can be copied by any tool, before or after.
class Backups {
 public:
  // Pages copied at once, 4 KiB each: other work waits for the database meanwhile.
  static constexpr int kPagesAtOnce = 64;

  Backups(Store& store, Clock& clock, std::string data_dir)
      : store_(store), clock_(clock), data_dir_(std::move(data_dir)) {}

  // False: nobody wants it any more.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  // Makes the folder `to`, empty for one of its own below the data folder. ALREADY_EXISTS when it
  // is there; on failure nothing of it stays.
  absl::StatusOr<v1::BackupResult> Make(const std::string& to, const Progress& progress);

 private:
  absl::Status CopyDatabase(const std::string& path, const Progress& progress,
                            v1::BackupResult& result);
  absl::Status Fill(const std::string& folder, const Progress& progress, v1::BackupResult& result);

  Store& store_;
  Clock& clock_;
  const std::string data_dir_;
};

// Makes a data folder of a backup: checks the copy against its manifest, page by page and its
// schema against this server's, and takes blobs, logs and metrics from the data folder `files_from`
// (empty: none), linked where that is possible. What it says is for the operator's terminal.
// ALREADY_EXISTS when `data_dir` has a database.
absl::StatusOr<std::string> RestoreBackup(const std::string& backup, const std::string& data_dir,
                                          const std::string& files_from);

}  // namespace sft::server
