#include "server/http/files_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "server/http/tuned_models.h"
#include "server/http/upload_exchange.h"
#include "server/openai/errors.h"
#include "server/openai/tuned.h"
#include "sft/v1/auth_service.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {
namespace {

constexpr std::string_view kPurpose = "fine-tune", kResults = "fine-tune-results",
                           kContent = "/content";
constexpr int kMostFiles = 10'000, kFilesPage = 500, kMostResults = 100;
constexpr size_t kMostPurpose = 64;
// Of a body that is refused, so that its client, who sends all of it first, hears why.
constexpr uint64_t kMostDrained = uint64_t{64} << 20;

absl::Status CheckPurpose(const std::string& purpose) {
  if (purpose == kPurpose) return absl::OkStatus();
  if (purpose == kResults) {
    return openai::ParamError("purpose",
                              "purpose \"fine-tune-results\" is of files that the server makes");
  }
  return openai::ParamError("purpose",
                            fmt::format("purpose \"{}\" is not served: \"{}\" is",
                                        WithoutHidden(purpose.substr(0, kMostPurpose)), kPurpose));
}

// The last part of a path of whatever system. INVALID_ARGUMENT for one that cannot be shown.
absl::StatusOr<std::string> SafeName(const std::string& sent) {
  const std::string name = sent.substr(sent.find_last_of("/\\") + 1);
  if (name.empty() || name == "." || name == "..") {
    return openai::ParamError("file", "file has no name: send one with its part");
  }
  if (const std::string hidden = FindHidden(name); !hidden.empty()) {
    return openai::ParamError(
        "file", fmt::format("file has a name that holds {}, which is a control character or cannot "
                            "be seen: give it another",
                            hidden));
  }
  return name;
}

}  // namespace

absl::Status FilesCall::Serve(const std::string& path) {
  if (path.empty() || path == "/") {
    if (door_.posts()) return Create();
    if (door_.gets()) return List();
    return absl::UnimplementedError("/v1/files is asked with GET and POST");
  }
  const size_t end = std::min(path.find('/', 1), path.size());
  const std::string id = DecodedPath(std::string_view(path).substr(1, end - 1));
  const std::string_view rest = std::string_view(path).substr(end);
  if (rest.empty() && door_.gets()) return Get(id);
  if (rest.empty() && door_.deletes()) return Delete(id);
  if (rest == kContent && door_.gets()) return Content(id);
  if (!rest.empty() && rest != kContent) {
    return NotFound("there are /v1/files, /v1/files/ID and /v1/files/ID/content");
  }
  return absl::UnimplementedError(rest.empty() ? "a file is asked with GET and DELETE"
                                               : "its content is asked with GET");
}

absl::Status FilesCall::Create() {
  // Before a byte of the body is read: who it is.
  SFT_RETURN_IF_ERROR(
      door_.CallOnce<v1::Identity>("AuthService.WhoAmI", v1::WhoAmIRequest()).status());
  const HttpRequest& request = door_.http.request();
  const std::string boundary = BoundaryIn(door_.Field("content-type"));
  if (boundary.empty()) {
    return InvalidArgument("the Content-Type is not multipart/form-data with its boundary");
  }
  if (!request.length.has_value()) {
    return InvalidArgument("the Content-Length is missing, which says how much room to keep");
  }
  if (*request.length > kMostBytes) {
    return absl::OutOfRangeError(
        fmt::format("the upload has {} bytes, at most {} are taken", *request.length, kMostBytes));
  }
  Form taken;
  FormData form(boundary, [this] { return door_.http.ReadSome(); });
  const absl::Status read = TakeForm(form, taken);
  const bool broken = absl::IsDeadlineExceeded(read) || absl::IsCancelled(read);
  const bool drains = read.ok() || (!broken && *request.length <= kMostDrained);
  if (drains) SFT_RETURN_IF_ERROR(Drain(read));
  SFT_RETURN_IF_ERROR(read);
  v1::CreateFileRequest create;
  create.set_sha256(taken.sha256);
  create.set_file_name(taken.file_name);
  create.set_purpose(taken.purpose);
  create.set_project(door_.project());
  create.set_again(door_.repeats());
  const auto file = door_.CallOnce<v1::File>("FileService.CreateFile", create);
  if (!file.ok()) return openai::InParam("file", file.status());
  return door_.Respond(DumpJson(openai::FileJson(*file)));
}

absl::Status FilesCall::TakeForm(FormData& form, Form& taken) {
  while (true) {
    SFT_ASSIGN_OR_RETURN(const auto part, form.NextPart());
    if (!part.has_value()) break;
    SFT_RETURN_IF_ERROR(TakePart(form, *part, taken));
  }
  if (taken.purpose.empty()) return openai::ParamError("purpose", "purpose is missing");
  if (!taken.has_file) return openai::ParamError("file", "file is missing");
  return absl::OkStatus();
}

absl::Status FilesCall::Drain(const absl::Status& read) {
  while (true) {
    const absl::StatusOr<std::string> rest = door_.http.ReadSome();
    if (!rest.ok()) return read.ok() ? rest.status() : read;
    if (rest->empty()) return absl::OkStatus();
  }
}

absl::Status FilesCall::TakePart(FormData& form, const FormData::Part& part, Form& taken) {
  if (part.name == "purpose" && !part.file_name.has_value()) {
    if (!taken.purpose.empty()) return openai::ParamError("purpose", "purpose is given twice");
    SFT_ASSIGN_OR_RETURN(taken.purpose, form.ReadText(kMostPurpose));
    return CheckPurpose(taken.purpose);
  }
  if (part.name == "file") {
    if (std::exchange(taken.has_file, true)) {
      return openai::ParamError("file", "file is given twice");
    }
    if (!part.file_name.has_value()) {
      return openai::ParamError("file", "file is no file: its part has no filename");
    }
    SFT_ASSIGN_OR_RETURN(taken.file_name, SafeName(*part.file_name));
    return Upload(form, taken);
  }
  const std::string shown = WithoutHidden(part.name.substr(0, 80));
  const std::string param = shown.substr(0, shown.find('['));
  return openai::ParamError(param, fmt::format("{} is not served here: leave it out", shown));
}

absl::Status FilesCall::Upload(FormData& form, Form& taken) {
  v1::UploadBlobRequest first;
  first.set_purpose(v1::UploadBlobRequest::DATASET);
  first.set_size(static_cast<int64_t>(*door_.http.request().length));
  first.set_display_name(taken.file_name);
  first.set_project(door_.project());
  UploadExchange exchange(
      door_.origin(), first, [&] { return form.ReadSome(); }, [this] { return door_.http.Gone(); });
  const absl::Status uploaded = door_.Serve("DataService.UploadBlob", exchange);
  if (!uploaded.ok()) return openai::InParam("file", uploaded);
  taken.sha256 = exchange.answer().blob().sha256();
  return absl::OkStatus();
}

absl::Status FilesCall::List() {
  SFT_ASSIGN_OR_RETURN(const auto query, door_.ReadQueryOf({"after", "limit", "order", "purpose"}));
  v1::ListFilesRequest request;
  request.set_project(door_.project());
  int limit = kMostFiles;
  std::string purpose, after;
  for (const auto& [name, value] : query) {
    if (name == "after") after = value;
    if (name == "purpose") purpose = value;
    if (name == "limit") {
      SFT_ASSIGN_OR_RETURN(limit, openai::ReadLimit(value, kMostFiles));
    }
    if (name == "order" && value != "asc" && value != "desc") {
      return openai::ParamError("order", "order is neither \"asc\" nor \"desc\"");
    }
    if (name == "order") request.set_oldest_first(value == "asc");
  }
  if (purpose == kResults) return ListResults(after, limit);
  request.set_purpose(purpose);
  if (!after.empty()) request.set_after("files/" + after);
  std::vector<openai::Json> files;
  // One more tells whether there are more.
  while (static_cast<int>(files.size()) <= limit) {
    request.set_page_size(std::min<int>(kFilesPage, limit + 1 - static_cast<int>(files.size())));
    const auto page = door_.CallOnce<v1::ListFilesResponse>("FileService.ListFiles", request);
    if (!page.ok()) return openai::NotFoundIn("after", page.status());
    for (const v1::File& file : page->files()) files.push_back(openai::FileJson(file));
    request.clear_after();
    request.set_page_token(page->next_page_token());
    if (page->next_page_token().empty()) break;
  }
  const bool more = static_cast<int>(files.size()) > limit;
  if (more) files.resize(static_cast<size_t>(limit));
  return door_.Respond(openai::ListJson(std::move(files), more));
}

absl::Status FilesCall::ListResults(const std::string& after, int limit) {
  std::string after_job;
  if (!after.empty()) {
    const std::optional<std::string> job = openai::JobOfResultFile(after);
    if (!job.has_value()) return openai::NotFoundIn("after", NotFound("after is no such file"));
    after_job = *job;
  }
  limit = std::min(limit, kMostResults);
  SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs,
                       ListTuned(door_, limit + 1, after_job, /*succeeded=*/true));
  std::vector<openai::Json> files;
  for (const v1::Job& job : jobs.jobs()) {
    if (static_cast<int>(files.size()) == limit) break;
    files.push_back(openai::ResultFileJson(job, std::nullopt));
  }
  return door_.Respond(openai::ListJson(std::move(files), jobs.jobs_size() > limit));
}

absl::StatusOr<v1::File> FilesCall::Find(const std::string& id) {
  v1::GetFileRequest get;
  get.set_name("files/" + id);
  auto file = door_.CallOnce<v1::File>("FileService.GetFile", get);
  if (!file.ok()) return openai::NotFoundIn("file_id", file.status());
  return file;
}

absl::Status FilesCall::Get(const std::string& id) {
  if (const auto job_id = openai::JobOfResultFile(id); job_id.has_value()) {
    SFT_ASSIGN_OR_RETURN(const v1::Job job, GetTuned(door_, *job_id, "file_id"));
    SFT_ASSIGN_OR_RETURN(const std::string csv, CsvOf(*job_id));
    return door_.Respond(DumpJson(openai::ResultFileJson(job, static_cast<int64_t>(csv.size()))));
  }
  SFT_ASSIGN_OR_RETURN(const v1::File file, Find(id));
  return door_.Respond(DumpJson(openai::FileJson(file)));
}

absl::Status FilesCall::Delete(const std::string& id) {
  if (openai::JobOfResultFile(id).has_value()) {
    return openai::ParamError("file_id",
                              "file_id is of a job's curve, which goes with the job's data");
  }
  v1::DeleteFileRequest remove;
  remove.set_name("files/" + id);
  const auto removed = door_.CallOnce<v1::DeleteFileResponse>("FileService.DeleteFile", remove);
  if (!removed.ok()) return openai::NotFoundIn("file_id", removed.status());
  return door_.Respond(DumpJson(openai::Json{{"id", id}, {"object", "file"}, {"deleted", true}}));
}

absl::Status FilesCall::Content(const std::string& id) {
  const HttpResponse head = {
      200,
      "application/octet-stream",
      "",
      {{"Content-Disposition", "attachment"}, {"Cache-Control", "no-store"}}};
  if (const auto job_id = openai::JobOfResultFile(id); job_id.has_value()) {
    SFT_RETURN_IF_ERROR(GetTuned(door_, *job_id, "file_id").status());
    SFT_ASSIGN_OR_RETURN(std::string csv, CsvOf(*job_id));
    HttpResponse whole = head;
    whole.body = std::move(csv);
    (void)door_.http.Respond(whole);
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(const v1::File file, Find(id));
  v1::DownloadBlobRequest download;
  download.set_sha256(file.sha256());
  SFT_RETURN_IF_ERROR(door_.Call(
      "DataService.DownloadBlob", download, [&](const google::protobuf::Message& message) {
        const auto& chunk = static_cast<const v1::DownloadChunk&>(message);
        if (!door_.http.begun() && !door_.http.Begin(head)) return false;
        return chunk.data().empty() || door_.http.Write(chunk.data());
      }));
  (void)door_.http.End();
  return absl::OkStatus();
}

absl::StatusOr<std::string> FilesCall::CsvOf(const std::string& job_id) {
  v1::ReadMetricsRequest read;
  read.set_name(job_id);
  std::string csv = openai::CsvHead();
  SFT_RETURN_IF_ERROR(
      door_.Call("JobService.ReadMetrics", read, [&](const google::protobuf::Message& message) {
        for (const v1::Metric& point :
             static_cast<const v1::ReadMetricsResponse&>(message).metrics()) {
          csv += openai::CsvLine(point);
        }
        return true;
      }));
  return csv;
}

}  // namespace sft::server
