#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/store/store.h"
#include "server/stored/removal.h"
#include "sft/v1/file_service.pb.h"

namespace sft::server {

// Data sets by ids and names of their users (FileService). Thread-safe.
class NamedFiles {
 public:
  // How long a request may be made again by who does not know whether it came.
  static constexpr std::chrono::minutes kSameRequest{10};

  // All borrowed.
  NamedFiles(Store& store, Clock& clock, Removal& removal)
      : store_(store), clock_(clock), removal_(removal) {}

  // As FileService, for callers who may. `project` is the one that the call was admitted to.
  absl::StatusOr<v1::File> Create(const v1::CreateFileRequest& request, const std::string& project,
                                  const Actor& actor);
  absl::StatusOr<v1::File> Get(const std::string& name);
  struct Page {
    v1::ListFilesResponse files;  // without a token
    int64_t next = 0;             // `after` of the next page; 0: there is none
  };
  // `visible`: projects whose files the caller may see; absent: all.
  absl::StatusOr<Page> List(const v1::ListFilesRequest& request, int64_t after, int limit,
                            std::optional<std::vector<std::string>> visible);
  absl::Status Delete(const std::string& name, const Actor& actor);

 private:
  Store& store_;
  Clock& clock_;
  Removal& removal_;
  // A last file and its data set go together, and none is made of that meanwhile.
  Mutex removing_;
};

}  // namespace sft::server
