#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "client/base/artifact_download.h"
#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/one_job.h"
#include "client/base/upload.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct ExportOptions {
  std::string job, type = "bf16", base = "better", dataset, gpu_type, out;
  bool merged = false, gguf = false, vllm = false;

  const char* form() const { return gguf ? "gguf" : vllm ? "vllm" : "merged"; }
};

std::string Quoted(const std::string& text) { return DumpJson(Json(text)); }

// Has what a job has trained made into another form by a job of kind "export", and fetches it.
class Exporter {
 public:
  Exporter(Connection& connection, ExportOptions options, bool json)
      : connection_(connection), options_(std::move(options)), json_(json) {}

  ExitCode Run() {
    absl::Status status = LookUp();
    if (status.ok()) status = CheckNewFolder(options_.out);
    if (status.ok()) status = Submit();
    if (!status.ok()) return Fail(connection_, status);
    connection_.console().err << fmt::format("{} exports {}; `sftctl logs {} --follow` shows how\n",
                                             id_, ShortName(job_.name()), id_);
    const absl::StatusOr<v1::Job> ended = FollowOneLine(connection_, id_);
    if (!ended.ok() && Interrupt::Raised()) {
      CancelOwn(connection_, id_, "sftctl export was interrupted");
      return kInterrupted;
    }
    if (!ended.ok()) return Fail(connection_, ended.status());
    if (ended->state() != v1::Job::SUCCEEDED) {
      PrintEnding(connection_, *ended);
      return ExitCodeOf(*ended);
    }
    status = Fetch();
    if (status.ok()) return Show();
    connection_.console().err << fmt::format("`sftctl download {} -o {}` tries again\n", id_,
                                             options_.out);
    return Fail(connection_, status);
  }

 private:
  absl::Status LookUp() {
    v1::GetJobRequest request;
    request.set_name(options_.job);
    SFT_ASSIGN_OR_RETURN(job_, connection_.Call(&v1::JobService::Stub::GetJob, request));
    SFT_ASSIGN_OR_RETURN(answerer_, AnswererOfJob(connection_, options_.job));
    if (!options_.gpu_type.empty()) answerer_.gpu_type = options_.gpu_type;
    if (answerer_.adapter.empty() && !options_.gguf) {
      return FailedPrecondition(
          fmt::format("{0} delivered a full model already: `sftctl download {0}`", options_.job));
    }
    if (options_.out.empty()) {
      options_.out = fmt::format("{}-{}", ShortName(job_.name()), options_.form());
    }
    while (options_.out.size() > 1 && options_.out.ends_with('/')) options_.out.pop_back();
    return absl::OkStatus();
  }

  // The name of the job's base as export.trained_on has it.
  static std::string TrainedOn(const Json& spec) {
    const Json none = Json::object();
    const Json quantization = spec.value("quantization", none);
    if (!spec.value("training", none).value("use_qlora", false)) return "original";
    const int bits = quantization.value("bits", 0);
    if (bits == 8) return "int8";
    if (bits != 4) return "original";
    return quantization.value("double_quant", true) ? "nf4" : "nf4_single";
  }

  std::string JobFile() const {
    const Json spec = ParseOrderedJson(job_.resolved_json());
    std::string text = AnswererTables(answerer_, "export", "export of " + ShortName(job_.name()));
    text += fmt::format("[export]\nform = \"{}\"\n", options_.form());
    if (options_.vllm) return text;
    text += fmt::format("type = {}\nbase = {}\ntrained_on = {}\n", Quoted(options_.type),
                        Quoted(options_.base), Quoted(TrainedOn(spec)));
    if (answerer_.adapter.empty()) return text;
    // Rows are read as the job read them.
    return text + "[data]\n" + DataLines(answerer_, {"columns", "roles", "loss_on"});
  }

  absl::Status Submit() {
    v1::SubmitJobRequest request;
    request.set_request_id(RandomUuid());
    request.set_file_name("export.toml");
    request.set_project(answerer_.project);
    request.set_source_text(JobFile());
    if (!options_.dataset.empty()) {
      v1::Override& rows = *request.add_overrides();
      rows.set_key("job.data");
      rows.set_value(options_.dataset);
      rows.set_origin("--dataset");
      rows.set_kind(v1::Override::FLAG);
      SFT_ASSIGN_OR_RETURN(const LocalFile file, HashLocalFile("job.data", options_.dataset));
      SFT_RETURN_IF_ERROR(AddRows(connection_, file, answerer_.project, request));
    }
    SFT_ASSIGN_OR_RETURN(const v1::Job made, SubmitAnswerer(connection_, answerer_, request));
    id_ = ShortName(made.name());
    return absl::OkStatus();
  }

  absl::Status Fetch() {
    v1::GetArtifactRequest request;
    request.set_name(id_);
    SFT_ASSIGN_OR_RETURN(const v1::Artifact artifact,
                         connection_.Call(&v1::DataService::Stub::GetArtifact, request));
    return DownloadArtifact(connection_, artifact, options_.out);
  }

  ExitCode Show() {
    Console& console = connection_.console();
    const absl::StatusOr<std::string> text = io::ReadFile(options_.out + "/export.json");
    const Json result = text.ok() ? ParseOrderedJson(*text) : Json();
    if (json_) {
      console.out << DumpJson(Json{{"folder", options_.out}, {"job", id_}, {"export", result}}, 2)
                  << "\n";
      return kSucceeded;
    }
    if (result.is_object() && result.contains("compared") && result["compared"].is_object()) {
      for (const auto& [base, numbers] : result["compared"].items()) {
        PrintDifference(
            base, numbers,
            result["compared"].size() > 1 && result.value("merged_into", std::string()) == base);
      }
      if (options_.type == "q8_0") {
        console.err << "the differences are those of the merge, before its weights were rounded to "
                       "q8_0\n";
      }
    }
    console.out << options_.out << "\n";
    return kSucceeded;
  }

  void PrintDifference(const std::string& base, const Json& numbers, bool better) {
    const auto number = [&](const char* key) {
      const auto found = numbers.find(key);
      return found != numbers.end() && found->is_number() ? found->get<double>() : 0.0;
    };
    connection_.console().err << fmt::format(
        "merged into the {} base{}: logits differ from base and adapter by {:.4g} at most and "
        "{:.4g} on average, the likeliest token is the same after {:.2f}% of {:.0f} tokens, loss "
        "{:.4f} (as trained {:.4f})\n",
        OneLine(base), better ? ", the better one" : "", number("largest_logit_difference"),
        number("mean_logit_difference"), 100 * number("same_likeliest_token"), number("tokens"),
        number("loss_merged"), number("loss_as_trained"));
  }

  Connection& connection_;
  ExportOptions options_;
  const bool json_;
  v1::Job job_;
  Answerer answerer_;
  std::string id_;
};

}  // namespace

void AddExport(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "export", "Write what a job has trained as a merged model, GGUF file or adapter for vLLM",
      "sftctl export job-abc --merged -o my-model");
  auto options = std::make_shared<ExportOptions>();
  command->AddOption("JOB", options->job, "Job whose adapter or full model is exported")
      ->Required();
  command->AddFlag("--merged", options->merged,
                   "A model with the adapter in its weights, for transformers, vLLM and others");
  command->AddFlag("--gguf", options->gguf, "A GGUF file for llama.cpp, with Ollama's Modelfile");
  command->AddFlag("--vllm", options->vllm,
                   "The adapter of a mixture of experts with one linear for each expert, which is "
                   "how vLLM reads it");
  command->AddOption("--type", options->type, "Type of the weights: bf16, f32, or q8_0 with --gguf")
      ->ShowDefault();
  command
      ->AddOption("--base", options->base,
                  "Weights that the adapter is merged into: original, trained (those of the "
                  "quantised base), or better, which is measured")
      ->ShowDefault();
  command->AddOption("--dataset", options->dataset,
                     "Rows to compare on (default: those that JOB was trained on)");
  command->AddOption("--gpu-type", options->gpu_type,
                     "Type of GPU, or CPU (default: that of JOB, or the only one)");
  command->AddOption("-o,--output", options->out,
                     "Folder to create (default: JOB-merged, JOB-gguf or JOB-vllm in the current "
                     "folder)");
  AddJsonFlag(command, session);
  command->Check([options] {
    const int forms = int{options->merged} + int{options->gguf} + int{options->vllm};
    if (forms != 1) return "needs one of --merged, --gguf and --vllm";
    const ExportOptions usual;
    const bool changed =
        options->type != usual.type || options->base != usual.base || !options->dataset.empty();
    return options->vllm && changed
               ? "--type, --base and --dataset are of merged weights: leave them out with --vllm"
               : "";
  });
  command->Run([&session, options](Connection& connection) {
    return Exporter(connection, *options, session.json).Run();
  });
}

}  // namespace sft::client
