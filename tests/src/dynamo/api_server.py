# A Kubernetes API server, as much of it as Dynamo's processes need to register with each other,
# and as much of a node as tells whether one pod is ready: it is while its health page answers.
#
#   api_server PORT FILES POD UID HEALTH_PORT
#
# All is in namespace "default". What workers say of their publishers is also written to FILES, as
# Dynamo's discovery in files has it, for a witness who shouldn't have to ask this server.
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORKERS = "dynamoworkermetadatas"
SLICES = "endpointslices"


class Store:
    def __init__(self, files):
        self.changed = threading.Condition()
        self.version = 1
        self.objects = {}
        self.history = []
        self.channels = os.path.join(files, "v1", "event_channels")
        os.makedirs(self.channels)

    def put(self, plural, name, made):
        with self.changed:
            self.version += 1
            if plural == WORKERS:
                # A map that is empty may be written as null by the real one.
                data = made["spec"]["data"]
                made["spec"]["data"] = {key: value or None for key, value in data.items()}
            old = self.objects.setdefault(plural, {}).get(name)
            metadata = made["metadata"]
            metadata["name"] = name
            metadata["resourceVersion"] = str(self.version)
            metadata["uid"] = old["metadata"]["uid"] if old else f"{plural}-{self.version}"
            self.objects[plural][name] = made
            kind = "MODIFIED" if old else "ADDED"
            self.history.append((self.version, plural, kind, json.dumps(made)))
            if plural == WORKERS:
                self.write_channels()
            self.changed.notify_all()
            return made

    def write_channels(self):
        wanted = {}
        for made in self.objects[WORKERS].values():
            for path, channel in (made["spec"]["data"].get("event_channels") or {}).items():
                wanted[urllib.parse.quote(path, safe="")] = channel
        for name in set(os.listdir(self.channels)) - set(wanted):
            os.remove(os.path.join(self.channels, name))
        for name, channel in wanted.items():
            unfinished = os.path.join(os.path.dirname(self.channels), "unfinished")
            with open(unfinished, "w") as file:
                json.dump(channel, file)
            os.replace(unfinished, os.path.join(self.channels, name))

    def after(self, plural, version):
        with self.changed:
            new = [line for line in self.history if line[0] > version and line[1] == plural]
            if not new:
                self.changed.wait(1)
            return new


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, form, *values):
        print(form % values, flush=True)

    def asked(self):
        url = urllib.parse.urlparse(self.path)
        _, _, rest = url.path.partition("/namespaces/default/")
        plural, _, name = rest.partition("/")
        return plural, name, dict(urllib.parse.parse_qsl(url.query))

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PATCH(self):
        plural, name, _ = self.asked()
        made = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(200, store.put(plural, name, made))

    def do_GET(self):
        plural, _, query = self.asked()
        if plural not in (WORKERS, SLICES):
            self.answer(404, {"kind": "Status", "status": "Failure", "code": 404})
        elif query.get("watch") in ("1", "true"):
            self.watch(plural, query)
        else:
            self.list(plural)

    def list(self, plural):
        with store.changed:
            metadata = {"resourceVersion": str(store.version)}
            items = list(store.objects.get(plural, {}).values())
            self.answer(200, {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})

    def watch(self, plural, query):
        version = int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            while True:
                for version, _, kind, made in store.after(plural, version):
                    line = f'{{"type":"{kind}","object":{made}}}\n'.encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        except OSError:
            self.close_connection = True


def is_healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def keep_ready(pod, uid, port):
    was_ready = None
    while True:
        is_ready = is_healthy(port)
        if is_ready != was_ready:
            was_ready = is_ready
            target = {"kind": "Pod", "name": pod, "namespace": "default", "uid": uid}
            endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": is_ready}, "targetRef": target}
            labels = {"nvidia.com/dynamo-discovery-enabled": "true"}
            store.put(SLICES, "all", {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"namespace": "default", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [endpoint],
            })
        time.sleep(0.1)


if __name__ == "__main__":
    port, files, pod, uid, health_port = sys.argv[1:]
    store = Store(files)
    threading.Thread(target=keep_ready, args=(pod, uid, int(health_port)), daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    server.serve_forever()
