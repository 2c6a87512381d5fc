#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/chance.h"

namespace sft::sim {

// The disk under the server's database: files in memory behind a file system of SQLite. What was
// synced survives a power failure; each write since then survives it or not, in part or whole. One
// thread, one database at a time.
class Disk {
 public:
  // SQLite opens its files here from now on, until the object goes.
  Disk();
  ~Disk();
  Disk(const Disk&) = delete;

  // The process that writes has been killed: what it writes while it is taken down is lost.
  void Freeze() { frozen_ = true; }
  // After Freeze and the end of the process: the machine goes on, with the page cache.
  void Thaw();
  // As Thaw, but the machine lost power. `chance` decides what of the unsynced writes is there;
  // `keep_none`: nothing.
  void LosePower(Chance& chance, bool keep_none);
  // Writes that need room fail from now on.
  void SetFull(bool full) { full_ = full; }
  bool full() const { return full_; }
  // A fault of the disk, to show that it is noticed: a sync does nothing.
  void SetLying(bool lying) { lying_ = lying; }

  // Of one file; for the functions that SQLite calls.
  struct File {
    std::string data;     // as a reader sees it
    std::string durable;  // as it was at the last sync
    struct Write {
      int64_t offset = 0;
      std::string bytes;
      int64_t truncate_to = -1;  // this instead of bytes
    };
    std::vector<Write> since_sync;
    std::vector<std::unique_ptr<char[]>> shared;  // WAL index
  };
  std::shared_ptr<File> Find(const std::string& name, bool create);
  bool Exists(const std::string& name) const { return files_.contains(name); }
  void Remove(const std::string& name);
  int Write(File& file, int64_t offset, const char* bytes, int64_t count);
  int Truncate(File& file, int64_t size);
  int Sync(File& file);

 private:
  std::map<std::string, std::shared_ptr<File>> files_;
  bool frozen_ = false, full_ = false, lying_ = false;
};

}  // namespace sft::sim
