#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/hub/hub.h"
#include "common/hub/model_name.h"

// The folders of a hub cache, as huggingface_hub reads and writes them:
//
//   CACHEDIR.TAG
//   .locks/models--ORG--NAME/ETAG.lock
//   models--ORG--NAME/blobs/ETAG                 a file's bytes; ETAG.sft-part while they come
//   models--ORG--NAME/refs/REVISION              the commit that a branch or tag stood for
//   models--ORG--NAME/snapshots/COMMIT/PATH      links into blobs
//   models--ORG--NAME/trees/COMMIT.json          all files of the repository at that commit

namespace sft::worker {

// One model's folder of a hub cache.
class HubCache {
 public:
  HubCache(std::string hub_dir, const std::string& id)
      : hub_dir_(std::move(hub_dir)),
        name_(hub::CacheFolderOf(id)),
        folder_(hub_dir_ + "/" + name_) {}

  const std::string& folder() const { return folder_; }
  std::string SnapshotDir(const std::string& commit) const {
    return folder_ + "/snapshots/" + commit;
  }
  std::string BlobPath(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  // What has come of a blob: its name says what it is to become, so that any later try may go on.
  std::string PartPath(const std::string& etag) const { return BlobPath(etag) + ".sft-part"; }
  std::string LockPath(const std::string& etag) const {
    return hub_dir_ + "/.locks/" + name_ + "/" + etag + ".lock";
  }

  // Makes the folders and the tag that keeps backups out.
  absl::Status Prepare() const;
  absl::Status WriteTree(const std::string& commit, const std::vector<hub::HubFile>& files) const;
  absl::Status WriteRef(const std::string& revision, const std::string& commit) const;
  // Links the files into the snapshot, config.json last: a folder with one counts as a model.
  absl::Status LinkSnapshot(const std::string& commit,
                            const std::vector<hub::HubFile>& files) const;

 private:
  const std::string hub_dir_;
  const std::string name_;
  const std::string folder_;
};

// The commit that a model's folder of a hub cache has for a branch, tag or commit; empty: none.
std::string CommitOf(const std::string& model_folder, const std::string& revision);

// The files of trees/COMMIT.json; nothing where there is none, or it cannot be understood.
std::optional<std::vector<hub::HubFile>> ReadTree(const std::string& model_folder,
                                                  const std::string& commit);

inline constexpr std::string_view kConfigFile = "config.json";
inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// Of a repository's files those that jobs need: configuration, tokenizer, safetensors weights.
// `index_text` is that of the index, where the weights are several files; until it is known they
// are left out. Never pickles, other formats, or programs. FAILED_PRECONDITION when it is no model
// that jobs could use; the message says what it has instead.
absl::StatusOr<std::vector<hub::HubFile>> NeededFiles(const std::vector<hub::HubFile>& files,
                                                      std::string_view index_text);
// True when the weights are several files, which the index names.
bool NeedsIndex(const std::vector<hub::HubFile>& files);

// Of a snapshot whose tree is known: what jobs need and is missing or has another size,
// "config.json and 2 more of 7 files"; empty: it is whole, or its tree is not known.
std::string MissingOf(const std::string& snapshot_dir);

}  // namespace sft::worker
