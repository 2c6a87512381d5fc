#include "worker/attempt/attempt_record.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

using Json = nlohmann::json;

constexpr char kFile[] = "/attempt.json";
constexpr int64_t kMaxRecordBytes = int64_t{1} << 30;

absl::StatusOr<Json> FromProto(const google::protobuf::Message& message) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text).ok()) {
    return Internal("cannot write " + message.GetTypeName() + " as JSON");
  }
  return ParseJson(text);
}

absl::Status ToProto(const Json& json, google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // an older worker reads a newer one's record
  const auto status = google::protobuf::util::JsonStringToMessage(DumpJson(json), message, options);
  return status.ok() ? absl::OkStatus() : InvalidArgument("not a " + message->GetTypeName());
}

// The record's text, if the worker wrote it: ranks may make files in the folder, too.
absl::StatusOr<std::string> ReadOwn(const std::string& attempt_dir) {
  const std::string path = attempt_dir + kFile;
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path, io::Links::kRefuse));
  struct stat folder {};
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || stat(attempt_dir.c_str(), &folder) != 0) {
    return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  }
  // Some network file systems show the files of root as another user's.
  if (info.st_uid != geteuid() && info.st_uid != folder.st_uid) {
    return FailedPrecondition(
        fmt::format("{} belongs to user {}, and neither to the worker nor to whom the folder does",
                    path, info.st_uid));
  }
  if (info.st_size > kMaxRecordBytes) return InvalidArgument(path + " is broken: it is too large");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd.get(), 0, text.data(), text.size(), path));
  text.resize(got);
  return text;
}

}  // namespace

absl::Status SaveRecord(const AttemptRecord& record, const std::string& attempt_dir) {
  Json json;
  json["attempt_uid"] = record.uid;
  json["epoch"] = record.epoch;
  SFT_ASSIGN_OR_RETURN(json["dispatch"], FromProto(record.dispatch));
  SFT_ASSIGN_OR_RETURN(json["verdict"], FromProto(record.verdict));
  SFT_ASSIGN_OR_RETURN(json["finding"], FromProto(record.finding));
  json["launched"] = record.launched;
  json["launched_ns"] = record.launched_ns;
  json["oom_kills_before"] = record.oom_kills_before;
  json["memory_before"] = record.memory_before;
  json["checkpoint_step"] = record.checkpoint_step;
  json["checkpoints_asked"] = record.checkpoints_asked;
  json["rank_uid"] = record.rank_uid;
  json["rank_gid"] = record.rank_gid;
  json["committed"] = record.committed;
  json["done"] = record.done;
  json["ended_us"] = record.ended_us;
  SFT_RETURN_IF_ERROR(io::MakeDirs(attempt_dir));
  return io::WriteFileAtomic(attempt_dir + kFile, DumpJson(json, 1) + "\n");
}

absl::StatusOr<AttemptRecord> LoadRecord(const std::string& attempt_dir) {
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadOwn(attempt_dir));
  const Json json = ParseJson(text);
  const auto is = [&](const char* key, auto test) {
    return json.contains(key) && (json[key].*test)();
  };
  if (!json.is_object() || !is("attempt_uid", &Json::is_string) ||
      !is("epoch", &Json::is_number_integer) || !is("dispatch", &Json::is_object) ||
      !is("verdict", &Json::is_object) || !is("launched", &Json::is_boolean) ||
      !is("committed", &Json::is_boolean) || !is("done", &Json::is_boolean) ||
      !is("memory_before", &Json::is_array)) {
    return InvalidArgument(attempt_dir + kFile + " is broken");
  }
  AttemptRecord record;
  record.uid = json["attempt_uid"];
  record.epoch = json["epoch"];
  record.launched = json["launched"];
  record.committed = json["committed"];
  record.done = json["done"];
  if (is("launched_ns", &Json::is_number_integer)) record.launched_ns = json["launched_ns"];
  if (is("oom_kills_before", &Json::is_number_integer)) {
    record.oom_kills_before = json["oom_kills_before"];
  }
  // An older worker wrote none.
  record.checkpoint_step = json.value("checkpoint_step", int64_t{0});
  record.checkpoints_asked = json.value("checkpoints_asked", int64_t{0});
  record.rank_uid = json.value("rank_uid", uint32_t{0});
  record.rank_gid = json.value("rank_gid", uint32_t{0});
  record.ended_us = json.value("ended_us", int64_t{0});
  for (const Json& bytes : json["memory_before"]) {
    record.memory_before.push_back(bytes.is_number_integer() ? bytes.get<int64_t>() : 0);
  }
  SFT_RETURN_IF_ERROR(ToProto(json["dispatch"], &record.dispatch));
  SFT_RETURN_IF_ERROR(ToProto(json["verdict"], &record.verdict));
  // Records of older workers have none.
  if (is("finding", &Json::is_object)) {
    SFT_RETURN_IF_ERROR(ToProto(json["finding"], &record.finding));
  }
  return record;
}

}  // namespace sft::worker
