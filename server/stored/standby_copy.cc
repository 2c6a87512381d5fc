#include "server/stored/standby_copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "server/database/sqlite.h"
#include "server/store/generation.h"
#include "server/store/storage.h"
#include "server/store/store.h"
#include "server/stored/backup_folder.h"
#include "server/stored/file_copies.h"
#include "server/stored/restore.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

constexpr char kStandby[] = "/standby", kCopyNote[] = "/copy.json", kTookOver[] = "/took_over";
constexpr int64_t kMaxNote = 1 << 16;

std::string CopyFolder(const std::string& data_dir, int64_t number) {
  return fmt::format("{}{}/{}", data_dir, kStandby, number);
}

// Numbers of the copies that are whole, in order; the others are broken rounds.
absl::StatusOr<std::vector<int64_t>> Copies(const std::string& data_dir) {
  std::vector<int64_t> numbers;
  if (!io::IsDirectory(data_dir + kStandby)) return numbers;
  SFT_ASSIGN_OR_RETURN(const auto names, io::ListDir(data_dir + kStandby));
  for (const std::string& name : names) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

struct CopyNote {
  std::string of;
  int64_t begun_us = 0;
};

absl::StatusOr<CopyNote> ReadNote(const std::string& folder) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(folder + kCopyNote, kMaxNote));
  const nlohmann::json note = ParseJson(text);
  if (!note.is_object() || !note.contains("of") || !note["of"].is_string() ||
      !note.contains("begun_us") || !note["begun_us"].is_number_integer()) {
    return DataLoss(fmt::format("{}{} cannot be read", folder, kCopyNote));
  }
  return CopyNote{note["of"].get<std::string>(), note["begun_us"].get<int64_t>()};
}

std::string TimeText(int64_t us) { return FormatUtc(WallTime(std::chrono::microseconds(us))); }

// Of a manifest that a server of an earlier release has sent, which lists no logs and curves.
absl::Status TooOld(const std::string& of) {
  return FailedPrecondition(fmt::format(
      "the server {} is of an earlier release and sends no standby what it needs: upgrade it first",
      of));
}

bool IsFileList(const nlohmann::json& files) {
  return files.is_array() && std::all_of(files.begin(), files.end(), [](const auto& file) {
           return file.is_object() && file.contains("path") && file["path"].is_string() &&
                  file.contains("bytes") && file["bytes"].is_number_integer() &&
                  io::IsSafeRelative(file["path"].template get<std::string>());
         });
}

std::set<std::string> NamesOf(const nlohmann::json& entries, const char* key) {
  std::set<std::string> names;
  for (const auto& entry : entries) names.insert(entry[key].get<std::string>());
  return names;
}

// Removes the files below a folder of the data folder whose names, as `name_of` has them, are not
// in `kept`.
absl::Status RemoveAllBut(const std::string& data_dir, const std::string& folder,
                          const std::set<std::string>& kept,
                          const std::function<std::string(const fs::path&)>& name_of) {
  std::vector<std::string> gone;
  std::error_code error;
  for (fs::recursive_directory_iterator it(data_dir + folder, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_directory(error) && !kept.contains(name_of(it->path()))) {
      gone.push_back(it->path().string());
    }
  }
  if (error && io::Exists(data_dir + folder)) {
    return ErrnoStatus("cannot list " + data_dir + folder, error.value());
  }
  for (const std::string& path : gone) SFT_RETURN_IF_ERROR(io::RemoveAll(path));
  return absl::OkStatus();
}

}  // namespace

bool IsStandby(const std::string& data_dir) { return io::IsDirectory(data_dir + kStandby); }

std::string TookOverFrom(const std::string& data_dir) {
  return io::ReadFile(data_dir + kTookOver, kMaxNote).value_or("");
}

absl::StatusOr<std::unique_ptr<StandbyCopy>> StandbyCopy::Open(const std::string& data_dir,
                                                               const std::string& of,
                                                               StandbySource& source,
                                                               Clock& clock) {
  if (io::Exists(data_dir + kDatabase) && !IsStandby(data_dir)) {
    return FailedPrecondition(fmt::format(
        "{0} has the database of a server: give a standby a folder of its own. If it was that of a "
        "server that was replaced, move {0}{1}* away; its other files are then used",
        data_dir, kDatabase));
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(data_dir + kStandby));
  SFT_RETURN_IF_ERROR(CloseToOthers(data_dir));
  std::unique_ptr<StandbyCopy> copy(new StandbyCopy(data_dir, of, source, clock));
  SFT_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, Copies(data_dir));
  if (!numbers.empty()) {
    copy->number_ = numbers.back();
    SFT_ASSIGN_OR_RETURN(const CopyNote note, ReadNote(CopyFolder(data_dir, copy->number_)));
    copy->begun_ = WallTime(std::chrono::microseconds(note.begun_us));
  }
  return copy;
}

absl::StatusOr<StandbyCopy::Round> StandbyCopy::Ship() {
  Round round;
  round.begun = clock_.Wall();
  const MonoTime begin = clock_.Mono();
  const std::string folder = CopyFolder(data_dir_, number_ + 1), partial = folder + ".partial";
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  SFT_RETURN_IF_ERROR(io::MakeDirs(partial));
  SFT_RETURN_IF_ERROR(source_.Fetch(partial));
  SFT_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(partial));
  if (!manifest.contains("files") || !IsFileList(manifest["files"])) return TooOld(of_);
  SFT_RETURN_IF_ERROR(CheckBackup(partial + kDatabase, manifest));
  SFT_ASSIGN_OR_RETURN(round.database_bytes, io::FileSize(partial + kDatabase));
  nlohmann::json before = nlohmann::json::array();
  if (begun_.has_value()) {
    SFT_ASSIGN_OR_RETURN(const nlohmann::json last, ReadManifest(CopyFolder(data_dir_, number_)));
    before = last.value("files", before);
  }
  for (const auto& [store, list] : {std::pair(kBlobs, "blobs"), {kCheckpoints, "checkpoints"}}) {
    SFT_ASSIGN_OR_RETURN(const auto blobs, BlobStore::Open(data_dir_ + store));
    SFT_RETURN_IF_ERROR(
        TakeBlobs(*blobs, store + 1, manifest.value(list, nlohmann::json::array()), round));
  }
  SFT_RETURN_IF_ERROR(TakeGrowing(manifest["files"], before, round));
  const nlohmann::json note = {{"of", of_}, {"begun_us", UnixMicros(round.begun)}};
  SFT_RETURN_IF_ERROR(
      io::WriteFileAtomic(partial + kCopyNote, DumpJson(note) + "\n", io::kPrivateMode));
  SFT_RETURN_IF_ERROR(SyncTree(partial, /*files=*/true));
  SFT_RETURN_IF_ERROR(io::RenameDurably(partial, folder));
  ++number_;
  begun_ = round.begun;
  SFT_RETURN_IF_ERROR(RemoveOthers(manifest));
  round.took = clock_.Mono() - begin;
  return round;
}

absl::Status StandbyCopy::TakeBlobs(BlobStore& store, const std::string& folder,
                                    const nlohmann::json& blobs, Round& round) {
  for (const auto& blob : blobs) SFT_RETURN_IF_ERROR(TakeBlob(store, folder, blob, round));
  return absl::OkStatus();
}

absl::Status StandbyCopy::TakeBlob(BlobStore& store, const std::string& folder,
                                   const nlohmann::json& blob, Round& round) {
  const std::string sha256 = blob["sha256"].get<std::string>();
  if (!io::IsSha256Hex(sha256)) return DataLoss("a blob's name in the manifest is no SHA-256");
  SFT_ASSIGN_OR_RETURN(const BlobStore::Stat stat, store.Find(sha256));
  if (stat.complete) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto upload,
                       store.Begin(sha256, blob.value("bytes", int64_t{0}), stat.received));
  const absl::Status read =
      source_.ReadFile(fmt::format("{}/{}/{}", folder, sha256.substr(0, 2), sha256), stat.received,
                       "", [&](int64_t, const std::string& bytes) {
                         round.bytes += static_cast<int64_t>(bytes.size());
                         return upload->Append(bytes);
                       });
  // Removed since it was listed.
  if (absl::IsNotFound(read)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(read);
  const absl::Status whole = upload->Finish({});
  if (absl::IsInvalidArgument(whole)) {
    // One file that the server's disk has damaged must not keep all others from being copied.
    spdlog::error("{} is damaged on {}, and not in the copy: {}", sha256, of_, Message(whole));
    ++round.damaged;
    return absl::OkStatus();
  }
  ++round.files;
  return whole;
}

absl::Status StandbyCopy::TakeGrowing(const nlohmann::json& files, const nlohmann::json& before,
                                      Round& round) {
  std::map<std::string, const nlohmann::json*> known;
  if (IsFileList(before)) {
    for (const auto& file : before) known[file["path"].get<std::string>()] = &file;
  }
  for (const auto& file : files) {
    const std::string path = file["path"].get<std::string>();
    const auto last = known.find(path);
    if (last != known.end() && *last->second == file && io::Exists(data_dir_ + "/" + path)) {
      continue;
    }
    const absl::Status taken = TakeGrown(path, round);
    if (!taken.ok() && !absl::IsNotFound(taken)) return taken;
  }
  return absl::OkStatus();
}

// What is here stays if it is the beginning of what is there.
absl::Status StandbyCopy::TakeGrown(const std::string& path, Round& round) {
  const std::string to = data_dir_ + "/" + path, anew = to + ".partial";
  SFT_RETURN_IF_ERROR(io::MakeDirs(fs::path(to).parent_path().string()));
  SFT_RETURN_IF_ERROR(io::RemoveAll(anew));
  io::FileHash here;
  if (io::Exists(to)) {
    SFT_ASSIGN_OR_RETURN(here, io::HashFile(to));
  }
  std::optional<io::AppendFile> file;
  bool replaces = false;
  SFT_RETURN_IF_ERROR(
      source_.ReadFile(path, here.size, here.size > 0 ? here.sha256 : "",
                       [&](int64_t offset, const std::string& bytes) -> absl::Status {
                         if (!file.has_value()) {
                           replaces = here.size > 0 && offset == 0;
                           SFT_ASSIGN_OR_RETURN(file, io::AppendFile::Open(replaces ? anew : to));
                         }
                         round.bytes += static_cast<int64_t>(bytes.size());
                         return file->Append(bytes);
                       }));
  if (!file.has_value()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(file->Sync());
  ++round.files;
  return replaces ? io::RenameDurably(anew, to) : absl::OkStatus();
}

absl::Status StandbyCopy::RemoveOthers(const nlohmann::json& manifest) {
  const auto file_name = [](const fs::path& path) { return path.filename().string(); };
  // What the database names stays, too: the server may have lost the file that is whole here.
  SFT_ASSIGN_OR_RETURN(const auto db,
                       Database::OpenCopy(CopyFolder(data_dir_, number_) + kDatabase));
  for (const auto& [folder, list] : {std::pair(kBlobs, "blobs"), {kCheckpoints, "checkpoints"}}) {
    std::set<std::string> kept = NamesOf(manifest.value(list, nlohmann::json::array()), "sha256");
    SFT_ASSIGN_OR_RETURN(
        std::set<std::string> named,
        store::NamedBlobs(*db, /*of_checkpoints=*/std::string_view(list) == "checkpoints"));
    kept.merge(named);
    SFT_RETURN_IF_ERROR(RemoveAllBut(data_dir_, folder, kept, file_name));
  }
  const std::set<std::string> grown = NamesOf(manifest["files"], "path");
  for (const char* folder : kGrowing) {
    SFT_RETURN_IF_ERROR(RemoveAllBut(data_dir_, folder, grown, [&](const fs::path& path) {
      return path.string().substr(data_dir_.size() + 1);
    }));
  }
  SFT_ASSIGN_OR_RETURN(const auto names, io::ListDir(data_dir_ + kStandby));
  for (const std::string& name : names) {
    if (name == std::to_string(number_)) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll(fmt::format("{}{}/{}", data_dir_, kStandby, name)));
  }
  return absl::OkStatus();
}

namespace {

// What a copy's manifest names and the folder has not.
int64_t MissingBlobs(const std::string& data_dir, const nlohmann::json& manifest) {
  int64_t missing = 0;
  for (const auto& [store, list] : {std::pair(kBlobs, "blobs"), {kCheckpoints, "checkpoints"}}) {
    for (const auto& blob : manifest.value(list, nlohmann::json::array())) {
      const std::string path = BlobPath(data_dir, store, blob["sha256"].get<std::string>());
      missing += io::Exists(path) ? 0 : 1;
    }
  }
  return missing;
}

absl::StatusOr<std::string> TakeOverCopy(const std::string& data_dir, Clock& clock, int64_t above) {
  SFT_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, Copies(data_dir));
  if (numbers.empty()) {
    return FailedPrecondition(fmt::format(
        "the standby in {} has no whole copy yet: there is nothing to take over with", data_dir));
  }
  const std::string folder = CopyFolder(data_dir, numbers.back());
  SFT_ASSIGN_OR_RETURN(const CopyNote note, ReadNote(folder));
  SFT_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(folder));
  SFT_RETURN_IF_ERROR(CheckBackup(folder + kDatabase, manifest));
  const std::string made = data_dir + kDatabase + ".restored";
  SFT_RETURN_IF_ERROR(io::RemoveAll(made));
  std::error_code error;
  fs::copy_file(folder + kDatabase, made, error);
  if (error) return ErrnoStatus("cannot copy " + folder + kDatabase, error.value());
  SFT_ASSIGN_OR_RETURN(const int64_t generation,
                       RaiseGenerationOf(made, data_dir + kDatabase, clock, above));
  SFT_RETURN_IF_ERROR(io::RenameDurably(made, data_dir + kDatabase));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(data_dir + kTookOver, note.of, io::kPrivateMode));
  // Gone at once: a half of it would be a standby without a copy.
  const std::string done = data_dir + kStandby + ".done";
  SFT_RETURN_IF_ERROR(io::RemoveAll(done));
  SFT_RETURN_IF_ERROR(io::RenameDurably(data_dir + kStandby, done));
  SFT_RETURN_IF_ERROR(io::RemoveAll(done));
  std::string text = fmt::format(
      "{} is the server's from now on, of generation {}: what {} had acknowledged before {} is in "
      "it, and what it acknowledged later is lost\n",
      data_dir, generation, note.of, TimeText(note.begun_us));
  if (const int64_t missing = MissingBlobs(data_dir, manifest); missing > 0) {
    text += fmt::format(
        "{} files that the copy names are missing: the server removed them while it was made, or "
        "its "
        "disk has damaged them\n",
        missing);
  }
  const auto left_out = manifest.value("left_out", std::vector<std::string>());
  if (!left_out.empty()) text += fmt::format("not in it: {}\n", fmt::join(left_out, "; "));
  return text;
}

}  // namespace

absl::StatusOr<std::string> TakeOverDataDir(const std::string& data_dir, Clock& clock,
                                            int64_t above) {
  if (IsStandby(data_dir)) return TakeOverCopy(data_dir, clock, above);
  const std::string path = data_dir + kDatabase;
  if (!io::Exists(path)) return NotFound(fmt::format("{} has no server's database", data_dir));
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open({.path = path}));
  int64_t generation = 0;
  SFT_RETURN_IF_ERROR(store->Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(generation, store::RaiseGeneration(db, UnixMicros(clock.Wall()), above));
    return absl::OkStatus();
  }));
  return fmt::format("{} is of generation {} from now on\n", data_dir, generation);
}

}  // namespace sft::server
