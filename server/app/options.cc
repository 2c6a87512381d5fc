#include "server/app/options.h"

#include <CLI/CLI.hpp>

#include "common/base/duration.h"
#include "common/base/generation.h"
#include "common/base/mail_address.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/hub/http.h"
#include "common/io/disk_space.h"
#include "server/oidc/oidc_config.h"
#include "server/webhooks/address_guard.h"

namespace sft::server {
namespace {

constexpr char kFooter[] = R"(
Examples:
  sft-server --dev                                    try it on this machine
  sft-server --dev --simulate-gpus H100:8             rehearse 8 GPU jobs on CPUs
  sft-server --data-dir /var/lib/sft                  keep jobs; workers connect by themselves
  sft-server check --data-dir /var/lib/sft            would it start? what is wrong?
  sft-server init --data-dir /var/lib/sft --name sft.example.org       certificates and tokens
  sft-server --data-dir /var/lib/sft --listen 0.0.0.0:7070             reached from elsewhere
  sft-server --data-dir /var/lib/sft --listen 0.0.0.0:7070 --oidc oidc.toml       with company login
Then, in another terminal:  sftctl submit job.toml --follow)";

// Options for how much is kept, and for how long.
void AddLimits(CLI::App& app, Options& options) {
  app.add_option("--log-limit-mb", options.log_limit_mb,
                 "MiB kept of one rank's log, its beginning and its newest part; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--job-log-limit-mb", options.job_log_limit_mb,
                 "MiB kept of all logs of a job, its attempts together; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
         "--max-delivery-gb", options.max_delivery_gb,
         "Limit in GB for the checkpoints and the artifact of one attempt on this server at a "
         "time, where its need cannot be computed from its model and the checkpoints kept")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--thin-metrics-after", options.thin_metrics_after,
         "Days after a job's end until its curve is thinned to about 10,000 points; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

const CLI::Validator& Duration() {
  static const CLI::Validator validator(
      [](std::string& text) {
        return ParseDuration(text).has_value() ? "" : "must be a duration as in 90s, 15m, 2h";
      },
      "");
  return validator;
}

// Options for what is removed by age, and how much disk stays free.
void AddRetention(CLI::App& app, Options& options) {
  const char* kRetention = "Retention (docs/operations.md)";
  const auto days = [&](const char* name, int& value, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str()
        ->group(kRetention);
  };
  days("--keep-logs", options.keep_logs,
       "Days after a job's end until its logs are removed; 0: never");
  days("--keep-metrics", options.keep_metrics, "The same for its curve");
  days("--keep-artifacts", options.keep_artifacts,
       "Days after a job's end, or the last download of its artifacts, until they are removed");
  days("--keep-datasets", options.keep_datasets,
       "Days after the end of the last job that named a data set until it is removed");
  days("--keep-backups", options.keep_backups, "Days until a backup in the data folder is removed");
  days("--keep-nodes", options.keep_nodes,
       "Days after a node that has left was heard last until it is forgotten, if no job was on it");
  const CLI::Validator mark(
      [](std::string& text) { return std::string(Message(io::ParseDiskMark(text).status())); }, "");
  options.disk_low = io::kDefaultLowMark;
  options.disk_full = io::kDefaultFullMark;
  app.add_option("--disk-low", options.disk_low,
                 "Warn when less of the data folder's disk is free: a share, a size, or the "
                 "smaller of both; off: never")
      ->check(mark)
      ->capture_default_str()
      ->group(kRetention);
  app.add_option("--disk-full", options.disk_full,
                 "Refuse uploads and new jobs when less is free; running jobs go on")
      ->check(mark)
      ->capture_default_str()
      ->group(kRetention);
}

void AddTiming(CLI::App& app, Options& options) {
  const char* kTiming = "Timing";
  const CLI::Validator& duration = Duration();
  app.add_option("--suspect-after", options.suspect_after, "Silence that makes a node SUSPECT")
      ->capture_default_str()
      ->check(duration)
      ->group(kTiming);
  app.add_option("--restart-delay", options.restart_delay,
                 "First wait before a failed job is placed again; doubled up to 5m")
      ->capture_default_str()
      ->check(duration)
      ->group(kTiming);
  app.add_option("--unreachable-margin", options.unreachable_margin,
                 "Added to a job's unreachable_after before it is placed elsewhere")
      ->capture_default_str()
      ->check(duration)
      ->group(kTiming);
}

void AddHub(CLI::App& app, Options& options) {
  const char* kHub = "Model hub (docs/operations.md)";
  app.add_option("--hub", options.hub,
                 "Address of the hub that has models which jobs name by id [HF_ENDPOINT, or "
                 "https://huggingface.co]; with HF_HUB_OFFLINE=1 it is not asked")
      ->group(kHub);
  app.add_option("--hub-token-file", options.hub_token_file,
                 "File with the token for it, for jobs whose project has none [HF_TOKEN]")
      ->group(kHub);
  app.add_option("--hub-ca", options.hub_ca,
                 "PEM file with the authorities that vouch for it [SSL_CERT_FILE, or the system's]")
      ->group(kHub);
}

void AddJudges(CLI::App& app, Options& options) {
  const char* kJudges = "Judges (docs/evaluate.md)";
  app.add_option("--judge-url", options.judge_urls,
                 "OpenAI-compatible API that this server calls for jobs whose answers a language "
                 "model grades, such as https://api.example.com/v1; may be given several times")
      ->check(CLI::Validator(
          [](std::string& text) {
            return hub::OriginOf(text).empty() ? "must be an address such as "
                                                 "https://api.example.com/v1"
                                               : "";
          },
          ""))
      ->group(kJudges);
  app.add_option("--judge-ca", options.judge_ca,
                 "PEM file with the authorities that vouch for them [SSL_CERT_FILE, or the "
                 "system's]")
      ->group(kJudges);
}

void AddWebhooks(CLI::App& app, Options& options) {
  const char* kWebhooks = "Webhooks (docs/webhooks.md)";
  app.add_option("--webhook-allow", options.webhook_allow,
                 "Network that webhooks may lead to beside the internet, such as 10.1.0.0/16 or "
                 "127.0.0.0/8; may be given several times")
      ->check(CLI::Validator(
          [](std::string& text) {
            const auto guard = AddressGuard::Make({text});
            return guard.ok() ? std::string() : std::string(Message(guard.status()));
          },
          ""))
      ->group(kWebhooks);
  app.add_option("--webhook-ca", options.webhook_ca,
                 "PEM file with the authorities that vouch for receivers [SSL_CERT_FILE, or the "
                 "system's]")
      ->group(kWebhooks);
}

void AddMail(CLI::App& app, Options& options) {
  const char* kMail = "Mail (docs/webhooks.md)";
  CLI::Option* const relay =
      app.add_option("--mail-relay", options.mail_relay,
                     "HOST or HOST:PORT of the mail relay (SMTP) that takes mails about events")
          ->group(kMail);
  CLI::Option* const from =
      app.add_option("--mail-from", options.mail_from, "Address that they come from")
          ->check(CLI::Validator(
              [](std::string& text) {
                return IsMailAddress(text) ? "" : "must be an address such as sft@example.com";
              },
              ""))
          ->needs(relay)
          ->group(kMail);
  relay->needs(from);
  app.add_option("--mail-tls", options.mail_tls,
                 "starttls: nothing is sent to the relay without TLS; off [off on this machine, "
                 "otherwise starttls]")
      ->check(CLI::IsMember({"off", "starttls"}))
      ->needs(relay)
      ->group(kMail);
  app.add_option("--mail-ca", options.mail_ca,
                 "PEM file with the authorities that vouch for the relay [the system's]")
      ->check(CLI::ExistingFile)
      ->needs(relay)
      ->group(kMail);
  app.add_option("--mail-to", options.mail_to,
                 "Domain that mail may go to, with those below it; may be given several times "
                 "[all]")
      ->needs(relay)
      ->group(kMail);
}

void AddOidc(CLI::App& app, Options& options) {
  app.add_option(
         "--oidc", options.oidc,
         "TOML file that says who vouches for people and for jobs of a CI (OpenID Connect), "
         "and which roles they get; with such lines:\n"
         "  [provider]\n"
         "  issuer = \"https://login.example.com\"\n"
         "  client_id = \"sft\"\n"
         "  client_secret_file = \"oidc.secret\"\n"
         "  [[role]]\n"
         "  group = \"ml-vision\"\n"
         "  project = \"vision\"\n"
         "  role = \"submitter\"")
      ->check(CLI::Validator(
          [](std::string& path) { return std::string(Message(ReadOidcConfig(path).status())); },
          ""))
      ->group("Company login (docs/security.md)");
}

void AddDevelopment(CLI::App& app, Options& options) {
  const char* kDev = "Worker of --dev";
  app.add_option("--model-cache", options.model_cache,
                 "Folder that receives models which jobs name by their hub id")
      ->group(kDev);
  app.add_option("--model-cache-limit", options.model_cache_limit, "Most bytes of it: 2TB")
      ->group(kDev);
  app.add_option("--models", options.models, "Folder with models; may be given several times")
      ->group(kDev);
  app.add_option("--shared", options.shared, "Folder that receives full models")->group(kDev);
  app.add_option("--simulate-gpus", options.simulate_gpus,
                 "Simulate GPUs, TYPE:N, for example H100:8; their ranks run on the CPU")
      ->group(kDev);
  app.add_option("--cpu-slots", options.cpu_slots, "Number of CPU slots to offer")->group(kDev);
  app.add_option("--torch", options.torch, "Folder of Python's torch, if it is not found")
      ->group(kDev);
  app.add_option("--worker-binary", options.worker_binary, "sft-worker [beside this program]")
      ->group(kDev);
}

void AddHttp(CLI::App& app, Options& options) {
  const char* kHttp = "HTTP and the web page (docs/operations.md)";
  app.add_option("--http", options.http,
                 "Address of the web page, the REST API, /healthz, /metrics and the "
                 "OpenAI-compatible endpoint, HOST:PORT, or off; with TLS where it is not loopback "
                 "[loopback, the port after --listen's, with the page and the API under --dev "
                 "alone]")
      ->group(kHttp);
  auto* certificate =
      app.add_option("--http-tls-cert", options.http_tls_cert,
                     "PEM file with the certificate of the site for it, and those that lead to its "
                     "authority [the server's own, which browsers do not know]")
          ->group(kHttp);
  app.add_option("--http-tls-key", options.http_tls_key, "PEM file with its key")
      ->needs(certificate)
      ->group(kHttp);
  app.add_option("--http-name", options.http_names,
                 "Host name by which browsers reach it, where no certificate says so: of a proxy; "
                 "may be given several times")
      ->group(kHttp);
  app.add_option("--web-dir", options.web_dir,
                 "Folder with the page's files, in place of those in this program: for who works "
                 "on them")
      ->check(CLI::ExistingDirectory)
      ->group(kHttp);
}

// Commands that do one thing to a data folder and exit.
void AddCommands(CLI::App& app, Options& options) {
  const auto add = [&](const char* name, const char* what, Options::Command command,
                       const char* example) {
    CLI::App* const added = app.add_subcommand(name, what);
    added->add_option("--data-dir", options.data_dir, "The server's data folder")->required();
    added->footer(std::string("Example:\n  ") + example);
    added->callback([&options, command] { options.command = command; });
    return added;
  };
  const char* const kName = "Host name or address by which the server is reached; may be repeated";
  CLI::App* const init = add(
      "init", "Make certificates, an admin token and a join token, once", Options::Command::kInit,
      "sft-server init --data-dir /var/lib/sft --name sft.example.org --name 10.0.0.1");
  init->add_option("--name", options.names, kName);
  init->add_flag(
      "--new-authority", options.new_authority,
      "Make new keys even if those of a fleet are lost: users must log in and nodes join again");
  add("renew", "Make a new certificate for the server, with more names if given",
      Options::Command::kRenew, "sft-server renew --data-dir /var/lib/sft --name 10.0.0.2")
      ->add_option("--name", options.names, kName);
  add("token", "Print another admin token, if all were lost; stop the server first",
      Options::Command::kToken, "sft-server token --data-dir /var/lib/sft > admin.token");
}

// The two commands by which another server takes the place of one that is lost.
void AddStandby(CLI::App& app, Options& options) {
  CLI::App* const standby = app.add_subcommand(
      "standby",
      "Copy a server every so often, with the options of the server that this one becomes when it "
      "is told to take over (docs/operations.md)");
  standby->fallthrough();
  standby->add_option("--of", options.standby_of, "Address of the server to copy, HOST:PORT")
      ->required();
  standby->add_option("--every", options.every, "Time from the begin of one copy to the next")
      ->capture_default_str()
      ->check(Duration());
  standby->add_option("--token-file", options.token_file,
                      "File with the token of an admin, where the server has tokens");
  standby->footer(
      "Example:\n  sft-server standby --of sft-a.example.org:7070 --every 30s --token-file "
      "standby.token \\\n    --data-dir /var/lib/sft-server --listen 0.0.0.0:7070");
  standby->callback([&options] { options.command = Options::Command::kStandby; });
  CLI::App* const take = app.add_subcommand(
      "takeover",
      "Make a standby the server of the fleet, or a data folder one of a new generation, so that "
      "workers obey it and no other server with the same history");
  take->add_option("--data-dir", options.data_dir, "The standby's data folder")->required();
  take->add_option("--above", options.above,
                   "The new generation is higher than this one, which a worker's log names")
      ->check(CLI::Range(int64_t{0}, kLastGeneration - 1));
  take->footer("Example:\n  sft-server takeover --data-dir /var/lib/sft-server");
  take->callback([&options] { options.command = Options::Command::kTakeOver; });
}

// Checks which options go together; throws for the command line's parser.
void Check(const Options& options) {
  if (options.command == Options::Command::kStandby) {
    if (options.dev || !options.restore.empty() || options.data_dir.empty()) {
      throw CLI::ValidationError("standby", "needs --data-dir, and neither --dev nor --restore");
    }
    const auto of = rpc::ParseEndpoint(options.standby_of);
    if (!of.ok()) throw CLI::ValidationError("--of", std::string(Message(of.status())));
  }
  if (options.command != Options::Command::kServe) return;
  if (options.dev && options.require_token) {
    throw CLI::ValidationError("--require-token", "goes with a server without --dev");
  }
  if (!options.restore.empty() && (options.dev || options.data_dir.empty())) {
    throw CLI::ValidationError("--restore", "needs --data-dir, and not --dev");
  }
  if (!options.files_from.empty() && options.restore.empty()) {
    throw CLI::ValidationError("--files-from", "goes with --restore");
  }
  if (!options.dev && options.data_dir.empty()) {
    throw CLI::ValidationError("--data-dir", "is required without --dev");
  }
  const bool for_worker = !options.models.empty() || !options.model_cache.empty() ||
                          !options.model_cache_limit.empty() || !options.shared.empty() ||
                          !options.simulate_gpus.empty() || !options.torch.empty();
  if (!options.dev && for_worker) {
    throw CLI::ValidationError("--dev",
                               "is needed by the options of its worker; without it give "
                               "them to sft-worker");
  }
}

}  // namespace

absl::StatusOr<rpc::Endpoint> HttpEndpoint(const rpc::Endpoint& listen, const std::string& http) {
  if (!http.empty()) return rpc::ParseEndpoint(http, /*allow_port_zero=*/true);
  rpc::Endpoint endpoint = listen;
  if (!rpc::IsLoopback(endpoint.host)) endpoint.host = "127.0.0.1";
  if (endpoint.port > 0) ++endpoint.port;
  return endpoint;
}

ParsedOptions ParseOptions(int argc, char** argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  CLI::App app("sft-server: queues fine-tuning jobs and runs them on the nodes' workers");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("sft-server ") + kVersion);
  app.add_flag("--dev", options.dev, "Start a worker beside the server; the data may be temporary");
  app.add_option(
         "--listen", options.listen,
         "Address for clients and workers, HOST:PORT; other than loopback after `sft-server init`")
      ->capture_default_str();
  app.add_flag("--require-token", options.require_token,
               "TLS and tokens on loopback too, where everybody on the machine may do everything");
  AddHttp(app, options);
  app.add_option("--data-dir", options.data_dir,
                 "Folder of the database, data sets, adapters and logs [--dev: temporary]");
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->capture_default_str();
  AddLimits(app, options);
  app.add_option("--restore", options.restore,
                 "Restore --data-dir from a backup's folder (sftctl admin backup), then exit");
  app.add_option("--files-from", options.files_from,
                 "With --restore: the data folder to take blobs, logs, metrics and checkpoints "
                 "missing in the backup from");
  app.add_flag("--accept-copy", options.accept_copy,
               "Start on a data folder that was copied while a server used it: the last "
               "acknowledged changes may be missing");
  AddRetention(app, options);
  AddTiming(app, options);
  AddHub(app, options);
  AddJudges(app, options);
  AddWebhooks(app, options);
  AddMail(app, options);
  AddOidc(app, options);
  AddDevelopment(app, options);
  CLI::App* check =
      app.add_subcommand("check",
                         "Check data folder, disk, database and ports as a server with these "
                         "options would use them, report problems, and exit");
  check->fallthrough();
  check->add_flag("--json", options.json, "Print JSON, for programs (docs/operations.md)");
  check->callback([&] { options.check = true; });
  AddCommands(app, options);
  AddStandby(app, options);
  app.callback([&] { Check(options); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    parsed.exit = true;
    parsed.exit_code = code == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace sft::server
