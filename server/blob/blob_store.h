#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::server {

// Files named by their SHA-256, written once and never changed. Thread-safe.
//
//   <dir>/ab/<sha256>            complete
//   <dir>/uploads/<sha256>.part  received so far; kept across restarts, so that an upload resumes
//   <dir>/uploads/<sha256>.<of>.part  of one uploader, who must neither see nor disturb the others
//   <dir>/uploads/<sha256>.<of>.brought  empty: this uploader has brought all of it
//   <dir>/damaged/<sha256>       its bytes were not those that its name says
class BlobStore {
 public:
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(const std::string& dir);
  // Where a blob lies below the folder of a store, open or not.
  static std::string PathIn(const std::string& dir, const std::string& sha256);

  struct Stat {
    bool complete = false;
    int64_t received = 0;  // of an unfinished upload
    int64_t size = 0;      // when complete
  };
  // `of` is whose unfinished upload counts (a name as of a project; empty: everybody's one).
  absl::StatusOr<Stat> Find(const std::string& sha256, const std::string& of = "") const;

  // Hash and received bytes of the unfinished uploads of one uploader.
  absl::StatusOr<std::map<std::string, int64_t>> Unfinished(const std::string& of) const;

  // The same, and the size of each whole blob that it has brought and that is there.
  absl::StatusOr<std::map<std::string, int64_t>> Held(const std::string& of) const;

  // Notes that an uploader has brought a whole blob, until the note is as old as an unfinished
  // upload may become (Old::uploads); and whether it has. A blob that others have brought says
  // nothing.
  absl::Status MarkBrought(const std::string& sha256, const std::string& of);
  bool WasBrought(const std::string& sha256, const std::string& of) const;

  // Where a complete blob lies; NOT_FOUND otherwise.
  absl::StatusOr<std::string> PathOf(const std::string& sha256) const;

  // Passes the bytes of a complete blob from `offset` on to `sink`, which says no when the reader
  // is gone (ABORTED). NOT_FOUND when there is none. DATA_LOSS when the file cannot be read or,
  // read from its beginning, is not what its name says: it is put aside, and is not there any more.
  using Sink = std::function<bool(int64_t offset, const std::string& bytes, int64_t total_bytes)>;
  absl::Status Read(const std::string& sha256, int64_t offset, const Sink& sink);
  // Blobs that were put aside.
  int64_t damaged() const;

  // Removes a complete blob; missing is OK.
  absl::Status Remove(const std::string& sha256);
  // Complete blobs, and files of uploads, that were last written before `unix_seconds`.
  struct Old {
    std::vector<std::string> blobs, uploads;
  };
  absl::StatusOr<Old> OlderThan(int64_t unix_seconds) const;
  // Drops what is left of an upload that nobody goes on with (one of Old::uploads); one under way
  // is left alone.
  absl::Status DropUpload(const std::string& file);

  // Held by who refers to a blob that is there, from the look to the row that names it, and by who
  // removes blobs, from the look whether one is named until it is gone. Taken before the store.
  Mutex& gate() { return gate_; }

  // One upload in progress; destroying it keeps what was received for a resume.
  class Upload {
   public:
    ~Upload();
    // RESOURCE_EXHAUSTED when the disk is full: what was received is removed, so that it does not
    // keep the disk full.
    absl::Status Append(std::string_view bytes);
    // Checks size and hash, then `check` on the file (a data set's rows), then makes it a blob.
    // What is wrong (INVALID_ARGUMENT) is removed; any other error of `check` keeps it for another
    // try. ALREADY there is fine.
    absl::Status Finish(const std::function<absl::Status(const std::string& path)>& check);

   private:
    friend class BlobStore;
    Upload(BlobStore& store, std::string sha256, std::string key, int64_t size, io::AppendFile file)
        : store_(store),
          sha256_(std::move(sha256)),
          key_(std::move(key)),
          size_(size),
          file_(std::move(file)) {}
    absl::Status Discard(absl::Status why);

    BlobStore& store_;
    const std::string sha256_;
    const std::string key_;  // of uploading_
    const int64_t size_;
    io::AppendFile file_;
  };

  // Starts or resumes an upload at `offset`, which must be what was received (OUT_OF_RANGE says
  // what it is). ABORTED while another upload of the same blob is under way; ALREADY_EXISTS when
  // the blob is complete, unless `again`: then its bytes are taken and checked all the same, as
  // proof that the uploader has them. `of` as in Find.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const std::string& sha256, int64_t size,
                                                int64_t offset, const std::string& of = "",
                                                bool again = false);

 private:
  explicit BlobStore(std::string dir) : dir_(std::move(dir)) {}
  std::string PartPath(const std::string& key) const;
  absl::StatusOr<std::map<std::string, int64_t>> FilesOf(const std::string& of, bool whole) const;
  // `fd` is of what was read: a blob that came in its place meanwhile stays.
  absl::Status PutAside(const std::string& sha256, int fd, const std::string& why);
  std::string BroughtPath(const std::string& key) const;

  const std::string dir_;
  Mutex gate_;
  mutable Mutex mutex_;
  std::set<std::string> uploading_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
