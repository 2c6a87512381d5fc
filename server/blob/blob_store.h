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

// Content-addressed file store: files are named by their SHA-256, written once and never changed.
// Thread-safe.
//
//   <dir>/ab/<sha256>            complete
//   <dir>/uploads/<sha256>.part  received so far; kept across restarts, so that an upload resumes
//   <dir>/uploads/<sha256>.<of>.part  of one uploader, who must neither see nor disturb the others
//   <dir>/uploads/<random>.<of>~unnamed.part  whose hash is not known yet; ends with its upload
//   <dir>/uploads/<sha256>.<of>.brought  empty: this uploader has sent all of it
//   <dir>/damaged/<sha256>       quarantined: the content did not match the name
class BlobStore {
 public:
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(const std::string& dir);
  // The path of a blob below the folder of a store, open or not.
  static std::string PathIn(const std::string& dir, const std::string& sha256);

  struct Stat {
    bool complete = false;
    int64_t received = 0;  // bytes of an unfinished upload
    int64_t size = 0;      // set when complete
  };
  // `of` names the uploader (a principal and project) whose unfinished upload counts; empty means
  // the one upload shared by everybody.
  absl::StatusOr<Stat> Find(const std::string& sha256, const std::string& of = "") const;

  // Hashes and received bytes of one uploader's unfinished uploads.
  absl::StatusOr<std::map<std::string, int64_t>> Unfinished(const std::string& of) const;

  // The same, and the sizes of the complete blobs that the uploader has sent and that still exist.
  absl::StatusOr<std::map<std::string, int64_t>> Held(const std::string& of) const;

  // Records that an uploader has sent a whole blob, until the record reaches the age limit of
  // unfinished uploads (Old::uploads); WasBrought reads the record. A blob sent only by others does
  // not count.
  absl::Status MarkBrought(const std::string& sha256, const std::string& of);
  bool WasBrought(const std::string& sha256, const std::string& of) const;

  // The path of a complete blob; NOT_FOUND otherwise.
  absl::StatusOr<std::string> PathOf(const std::string& sha256) const;

  // Passes the bytes of a complete blob from `offset` on to `sink`, which returns false when the
  // reader is gone (ABORTED). NOT_FOUND when there is no such blob. DATA_LOSS when the file cannot
  // be read or, read from its beginning, does not match its hash: it is quarantined, and no longer
  // in the store.
  using Sink = std::function<bool(int64_t offset, const std::string& bytes, int64_t total_bytes)>;
  absl::Status Read(const std::string& sha256, int64_t offset, const Sink& sink);
  // Number of quarantined blobs.
  int64_t damaged() const;

  // Removes a complete blob; OK if it is missing.
  absl::Status Remove(const std::string& sha256);
  // Complete blobs, and files of uploads, last written before `unix_seconds`.
  struct Old {
    std::vector<std::string> blobs, uploads;
  };
  absl::StatusOr<Old> OlderThan(int64_t unix_seconds) const;
  // Drops the rest of an abandoned upload (one of Old::uploads); one under way is left alone.
  absl::Status DropUpload(const std::string& file);
  // Forgets that the uploader has sent this blob, in part or whole: what it has received of an
  // unfinished upload is dropped, unless that is under way.
  absl::Status Forget(const std::string& sha256, const std::string& of);

  // Lock between references and removal. Whoever refers to an existing blob holds it from the check
  // to the row that names the blob; whoever removes blobs holds it from the check for references
  // until the blob is gone. Acquired before the store.
  Mutex& gate() { return gate_; }

  // One upload in progress; destroying it keeps what was received for a resume, unless it has no
  // name yet.
  class Upload {
   public:
    ~Upload();
    // RESOURCE_EXHAUSTED when the disk is full: the received bytes are removed, so that they do not
    // keep the disk full.
    absl::Status Append(std::string_view bytes);
    // Checks size and hash, runs `check` on the file (a data set's rows), then makes it a blob. A
    // wrong file (INVALID_ARGUMENT) is removed; after any other error of `check` it is kept for
    // another attempt. OK if the blob exists already.
    absl::Status Finish(const std::function<absl::Status(const std::string& path)>& check);
    // Of one without a name: known from `check` on.
    const std::string& sha256() const { return sha256_; }
    int64_t received() const { return file_.size(); }

   private:
    friend class BlobStore;
    Upload(BlobStore& store, std::string sha256, std::string key, int64_t size, io::AppendFile file)
        : store_(store),
          sha256_(std::move(sha256)),
          key_(std::move(key)),
          size_(size),
          file_(std::move(file)) {}
    absl::Status Discard(absl::Status why);
    // Compares what was received with what was announced, or names it by that.
    absl::Status CheckReceived(const std::string& part);

    BlobStore& store_;
    std::string sha256_;     // of one without a name a random one, until it has its own
    const std::string key_;  // its key in uploading_
    const int64_t size_;     // of one without a name the most
    io::AppendFile file_;
    bool named_ = true;
  };

  // Starts or resumes an upload at `offset`, which must equal the bytes received (OUT_OF_RANGE
  // names that number). ABORTED while another upload of the same blob is under way; ALREADY_EXISTS
  // when the blob is complete, unless `again`: then its bytes are received and checked all the
  // same, as proof that the uploader has them. `of` as in Find.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const std::string& sha256, int64_t size,
                                                int64_t offset, const std::string& of = "",
                                                bool again = false);
  // Starts an upload of at most `most` bytes whose hash nobody has told: it cannot be resumed.
  absl::StatusOr<std::unique_ptr<Upload>> BeginUnnamed(int64_t most, const std::string& of);

 private:
  explicit BlobStore(std::string dir) : dir_(std::move(dir)) {}
  std::string PartPath(const std::string& key) const;
  absl::StatusOr<std::map<std::string, int64_t>> FilesOf(const std::string& of, bool whole) const;
  // `fd` is the file that was read: a blob that has replaced it meanwhile stays.
  absl::Status PutAside(const std::string& sha256, int fd, const std::string& why);
  std::string BroughtPath(const std::string& key) const;

  const std::string dir_;
  Mutex gate_;
  mutable Mutex mutex_;
  std::set<std::string> uploading_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
