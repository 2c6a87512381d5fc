#include "tests/sim/disk.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace sft::sim {
namespace {

using File = Disk::File;

void Apply(std::string& data, const File::Write& write, size_t bytes) {
  if (write.truncate_to >= 0) {
    data.resize(static_cast<size_t>(write.truncate_to));
    return;
  }
  const auto end = static_cast<size_t>(write.offset) + bytes;
  if (data.size() < end) data.resize(end, '\0');
  std::copy_n(write.bytes.data(), bytes, data.data() + write.offset);
}

// What SQLite holds for an open file.
struct Handle {
  sqlite3_file base;
  Disk* disk;
  std::shared_ptr<File>* file;
};

Handle* Of(sqlite3_file* file) { return reinterpret_cast<Handle*>(file); }
File& FileOf(sqlite3_file* file) { return **Of(file)->file; }

int Close(sqlite3_file* file) {
  delete Of(file)->file;
  return SQLITE_OK;
}

int Read(sqlite3_file* file, void* to, int count, sqlite3_int64 offset) {
  const std::string& data = FileOf(file).data;
  const int64_t there = std::clamp<int64_t>(static_cast<int64_t>(data.size()) - offset, 0, count);
  std::memcpy(to, data.data() + offset * (there > 0), static_cast<size_t>(there));
  if (there == count) return SQLITE_OK;
  std::memset(static_cast<char*>(to) + there, 0, static_cast<size_t>(count - there));
  return SQLITE_IOERR_SHORT_READ;
}

int Write(sqlite3_file* file, const void* from, int count, sqlite3_int64 offset) {
  return Of(file)->disk->Write(FileOf(file), offset, static_cast<const char*>(from), count);
}

int Truncate(sqlite3_file* file, sqlite3_int64 size) {
  return Of(file)->disk->Truncate(FileOf(file), size);
}

int Sync(sqlite3_file* file, int) { return Of(file)->disk->Sync(FileOf(file)); }

int FileSize(sqlite3_file* file, sqlite3_int64* size) {
  *size = static_cast<sqlite3_int64>(FileOf(file).data.size());
  return SQLITE_OK;
}

// There is one connection.
int Lock(sqlite3_file*, int) { return SQLITE_OK; }
int CheckReservedLock(sqlite3_file*, int* held) {
  *held = 0;
  return SQLITE_OK;
}
int FileControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int SectorSize(sqlite3_file*) { return 4096; }
int Characteristics(sqlite3_file*) { return 0; }

int SharedMap(sqlite3_file* file, int region, int size, int extend, volatile void** at) {
  auto& shared = FileOf(file).shared;
  *at = nullptr;
  while (static_cast<int>(shared.size()) <= region) {
    if (extend == 0) return SQLITE_OK;
    shared.push_back(std::make_unique<char[]>(static_cast<size_t>(size)));
  }
  *at = shared[static_cast<size_t>(region)].get();
  return SQLITE_OK;
}
int SharedLock(sqlite3_file*, int, int, int) { return SQLITE_OK; }
void SharedBarrier(sqlite3_file*) {}
int SharedUnmap(sqlite3_file* file, int) {
  FileOf(file).shared.clear();
  return SQLITE_OK;
}

constexpr sqlite3_io_methods kMethods = {
    .iVersion = 2,
    .xClose = Close,
    .xRead = Read,
    .xWrite = Write,
    .xTruncate = Truncate,
    .xSync = Sync,
    .xFileSize = FileSize,
    .xLock = Lock,
    .xUnlock = Lock,
    .xCheckReservedLock = CheckReservedLock,
    .xFileControl = FileControl,
    .xSectorSize = SectorSize,
    .xDeviceCharacteristics = Characteristics,
    .xShmMap = SharedMap,
    .xShmLock = SharedLock,
    .xShmBarrier = SharedBarrier,
    .xShmUnmap = SharedUnmap,
};

Disk* OfSystem(sqlite3_vfs* system) { return static_cast<Disk*>(system->pAppData); }

int Open(sqlite3_vfs* system, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  Disk* disk = OfSystem(system);
  // A temporary file has no name and no life after its closing.
  std::shared_ptr<File> found = name == nullptr
                                    ? std::make_shared<File>()
                                    : disk->Find(name, (flags & SQLITE_OPEN_CREATE) != 0);
  Handle* handle = new (file) Handle{{nullptr}, disk, nullptr};
  if (found == nullptr) return SQLITE_CANTOPEN;
  handle->file = new std::shared_ptr<File>(std::move(found));
  handle->base.pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int Delete(sqlite3_vfs* system, const char* name, int) {
  OfSystem(system)->Remove(name);
  return SQLITE_OK;
}

int Access(sqlite3_vfs* system, const char* name, int, int* result) {
  *result = OfSystem(system)->Exists(name) ? 1 : 0;
  return SQLITE_OK;
}

int FullPath(sqlite3_vfs*, const char* name, int size, char* out) {
  sqlite3_snprintf(size, out, "%s", name);
  return SQLITE_OK;
}

sqlite3_vfs system_of_files;
sqlite3_vfs* usual = nullptr;

}  // namespace

Disk::Disk() {
  usual = sqlite3_vfs_find(nullptr);
  system_of_files = *usual;  // time and chance are the machine's: nothing depends on them
  system_of_files.szOsFile = sizeof(Handle);
  system_of_files.mxPathname = 512;
  system_of_files.zName = "simulated";
  system_of_files.pAppData = this;
  system_of_files.pNext = nullptr;
  system_of_files.xOpen = Open;
  system_of_files.xDelete = Delete;
  system_of_files.xAccess = Access;
  system_of_files.xFullPathname = FullPath;
  sqlite3_vfs_register(&system_of_files, 1);
}

Disk::~Disk() {
  sqlite3_vfs_unregister(&system_of_files);
  sqlite3_vfs_register(usual, 1);
}

void Disk::Thaw() {
  frozen_ = false;
  for (auto& [name, file] : files_) file->shared.clear();
}

void Disk::LosePower(Chance& chance, bool keep_none) {
  for (auto& [name, file] : files_) {
    std::string data = file->durable;
    // The device may have written any of them, in any order, and the last one in part.
    for (const File::Write& write : file->since_sync) {
      if (keep_none || chance.OneIn(2)) continue;
      size_t bytes = write.bytes.size();
      if (bytes > 512 && chance.OneIn(8)) bytes = bytes / 512 / 2 * 512;
      Apply(data, write, bytes);
    }
    file->data = data;
    file->durable = std::move(data);
    file->since_sync.clear();
  }
  Thaw();
}

std::shared_ptr<File> Disk::Find(const std::string& name, bool create) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  if (!create) return nullptr;
  return files_[name] = std::make_shared<File>();
}

void Disk::Remove(const std::string& name) {
  if (!frozen_) files_.erase(name);
}

int Disk::Write(File& file, int64_t offset, const char* bytes, int64_t count) {
  if (frozen_) return SQLITE_OK;
  if (full_ && offset + count > static_cast<int64_t>(file.data.size())) return SQLITE_FULL;
  File::Write write{offset, std::string(bytes, static_cast<size_t>(count)), -1};
  Apply(file.data, write, write.bytes.size());
  file.since_sync.push_back(std::move(write));
  return SQLITE_OK;
}

int Disk::Truncate(File& file, int64_t size) {
  if (frozen_) return SQLITE_OK;
  File::Write write{0, "", size};
  Apply(file.data, write, 0);
  file.since_sync.push_back(std::move(write));
  return SQLITE_OK;
}

int Disk::Sync(File& file) {
  if (frozen_ || lying_) return SQLITE_OK;
  for (const File::Write& write : file.since_sync) Apply(file.durable, write, write.bytes.size());
  file.since_sync.clear();
  return SQLITE_OK;
}

}  // namespace sft::sim
